"""Channel and prior: each hat is a derivative of the free entropy; the reduced equations hold.

``f = alpha E M + Tr[q_hat V]/2 - Tr[V_hat q]/2 + m_hat.m + Tr[theta_hat^T theta] - prior``, so that
stationarity reads m_hat = -alpha dE[M]/dm, q_hat = -2 alpha dE[M]/dV, V_hat = 2 alpha dE[M]/dq,
theta_hat = -alpha dE[M]/dtheta. The left sides use Stein's lemma, the right ones only E[M].
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phasecore import Problem, Tokens
from phasecore.channel import Channel
from phasecore.overlaps import Overlaps
from phasecore.prior import WeightLaw, tilt
from phasecore.quadrature import gauss_hermite, sobol_normal

ALPHA = 1.7
TOKENS3 = Tokens.isotropic(3, 0.6, 0.2, positions=(1.0, 0.2, -1.0))
PROBLEMS = {
    "paper": Problem.paper(),
    "correlated": Problem.paper(correlation=-0.3),
    "untied": Problem.paper(tied=False),
    "three tokens": Problem(TOKENS3, 0.2 + 0.4 * np.eye(3), 0.3, 0.01),
}


def law(p: Problem, seed: int = 0) -> WeightLaw:
    """A generic law: nothing pinned, all entries different."""
    rng = np.random.default_rng(seed)
    K, k = len(p.tokens.weights), p.tokens.positions.shape[1]
    R, t = p.n_fields, p.teacher_rank

    def positive(scale):
        X = rng.normal(size=(K, R, R))
        return scale * (np.eye(R) + 0.1 * X @ X.swapaxes(1, 2))

    return WeightLaw(
        position=0.3 + 0.1 * rng.normal(size=(K, k, R)),
        teacher=0.4 + 0.1 * rng.normal(size=(K, R, t)),
        noise=positive(0.3),
        response=positive(12.0),
    )


def channel(p: Problem, n: int, scramble: int) -> Channel:
    dim = p.length * (p.n_fields + p.teacher_rank)
    return Channel(p, sobol_normal(dim, n, (7, scramble)))


def shifted(overlaps: Overlaps, name: str, index: tuple[int, ...], step: float) -> Overlaps:
    array = getattr(overlaps, name).copy()
    array[index] += step
    if name in ("q", "V") and index[:2] != index[2:]:
        array[index[2:] + index[:2]] += step
    return replace(overlaps, **{name: array})


@pytest.mark.parametrize("name", PROBLEMS)
def test_hats_are_derivatives_of_the_moreau_envelope(name):
    """12 scrambles, up to 60 entries, 4.5 standard errors of the paired difference."""
    p = PROBLEMS[name]
    overlaps = law(p).overlaps(p)
    signs = {"m": ("m_hat", -1.0), "V": ("q_hat", -2.0), "q": ("V_hat", 2.0)}
    signs["theta"] = ("theta_hat", -1.0)
    steps = {"m": 1e-4, "V": 1e-2, "q": 1e-3, "theta": 1e-3}
    gaps: dict[tuple, list[float]] = {}
    scales: dict[str, float] = {}
    for scramble in range(12):
        c = channel(p, 2**10, scramble)
        c.settle(overlaps)
        hats = c.conjugates(ALPHA, overlaps)
        for field, (hat, factor) in signs.items():
            array = getattr(hats, hat)
            scales[field] = float(np.abs(array).max())
            for index in np.ndindex(array.shape):
                if field in ("q", "V") and index[:2] > index[2:]:
                    continue
                h = steps[field]
                c.settle(shifted(overlaps, field, index, h))
                up = c.mean_moreau(shifted(overlaps, field, index, h))
                c.settle(shifted(overlaps, field, index, -h))
                down = c.mean_moreau(shifted(overlaps, field, index, -h))
                twice = 2 if field in ("q", "V") and index[:2] != index[2:] else 1
                slope = factor * ALPHA * (up - down) / (2 * h) / twice
                sides = array[index]
                if field in ("q", "V"):
                    sides = (array[index] + array[index[2:] + index[:2]]) / 2
                gaps.setdefault((field, index), []).append(sides - slope)
    for (field, index), values in gaps.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values)) < 4.5 * error + 2e-4 * scales[field], (field, index)


@pytest.mark.parametrize("seed", [0, 1])
def test_reduced_equations_of_the_paper(seed):
    """L=2, r=t=1: D = lam + s2 V_hat; V = s2/D, m = m_hat/D, theta = s4 theta_hat/D, q as below."""
    p = Problem.paper()
    s2 = 0.25
    overlaps = law(p, seed).overlaps(p)
    hats = channel(p, 2**10, 0).conjugates(ALPHA, overlaps)
    V_hat = np.einsum("lala->", hats.V_hat)
    q_hat = np.einsum("lala->", hats.q_hat)
    theta_hat = np.einsum("lala->", hats.theta_hat)
    m_hat = hats.m_hat[0, 0] - hats.m_hat[1, 0]
    D = 0.01 + s2 * V_hat
    new = tilt(p, hats).law().overlaps(p)
    assert new.V[0, 0, 0, 0] == pytest.approx(s2 / D)
    assert new.m.ravel() == pytest.approx([m_hat / D, -m_hat / D])
    assert new.theta[1, 0, 1, 0] == pytest.approx(s2**2 * theta_hat / D)
    q = s2 * (s2 * q_hat + m_hat**2 + s2**2 * theta_hat**2) / D**2
    assert new.q[1, 0, 1, 0] == pytest.approx(q)
    assert new.q[0, 0, 1, 0] == 0


def test_local_fields_have_the_stated_covariance():
    p = PROBLEMS["three tokens"]
    overlaps = law(p).overlaps(p)
    c = channel(p, 2**14, 0)
    x = np.concatenate([c.h, c.fields(overlaps).w - overlaps.m.reshape(-1, 1)])
    expected = np.block(
        [
            [p.tokens.rho, overlaps.theta.reshape(3, 3).T],
            [overlaps.theta.reshape(3, 3), overlaps.q.reshape(3, 3)],
        ]
    )
    np.testing.assert_allclose(x @ x.T / 2**14, expected, atol=2e-3)


def test_fresh_loss_is_a_gaussian_average_without_the_prox():
    """Monte Carlo with its own sampling of (w, h), 3.5 standard errors."""
    p = Problem.paper()
    overlaps = law(p).overlaps(p)
    _, fresh = channel(p, 2**14, 0).mean_losses(overlaps)
    rng = np.random.default_rng(3)
    n = 400_000
    q, theta = overlaps.q[0, 0, 0, 0], overlaps.theta[0, 0, 0, 0]
    total = np.zeros(n)
    h = rng.normal(0, 0.5, size=(2, n))
    w = theta / 0.25 * h + np.sqrt(q - theta**2 / 0.25) * rng.normal(size=(2, n))
    w += overlaps.m
    for a, b in ((0, 1), (1, 0)):
        S = 1 / (1 + np.exp(-w[a] * (w[a] - w[b])))
        T = 0.7 / (1 + np.exp(-h[a] * (h[a] - h[b]))) + 0.3 * 0.6
        total += 0.25 * (S - T) ** 2  # both entries of the row: 2 * (1/2) sigma^2
    assert abs(total.mean() - fresh) < 3.5 * total.std() / np.sqrt(n)


def test_two_equal_atoms_are_one():
    p = Problem.paper()
    split = Tokens(p.tokens.positions, np.repeat(p.tokens.covariances, 2, 0), [0.4, 0.6])
    twin = Problem(split, p.A, p.omega, p.lam)
    one = law(p)
    two = WeightLaw(*(np.repeat(getattr(one, n), 2, 0) for n in WeightLaw.__annotations__))
    for name in Overlaps.__annotations__:
        a, b = getattr(one.overlaps(p), name), getattr(two.overlaps(twin), name)
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert one.ridge_cost(p) == pytest.approx(two.ridge_cost(twin))


def test_quadrature_rules_integrate_normals():
    for rule in (sobol_normal(3, 2**14, (1,)), gauss_hermite(3, 12)):
        np.testing.assert_allclose(rule.mean(rule.points), 0, atol=1e-3)
        covariance = (rule.points * rule.weights) @ rule.points.T
        np.testing.assert_allclose(covariance, np.eye(3), atol=2e-3)
        assert rule.weights.sum() == pytest.approx(1)
    rule = gauss_hermite(2, 12)
    assert rule.mean(rule.points[0] ** 4 * rule.points[1] ** 2) == pytest.approx(3)
    a, b = (sobol_normal(2, 512, (s,)).points for s in (0, 1))
    assert np.abs(a - b).max() > 0.1
