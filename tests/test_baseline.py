"""The linear positional baseline against closed forms, Monte Carlo and direct minimisation."""

from __future__ import annotations

import numpy as np
import pytest

from phasecore import Problem, Tokens, linear_baseline


@pytest.mark.parametrize("omega", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_two_isotropic_tokens_by_one_dimensional_reduction(omega, sigma):
    """``2 sigma^2 (1-omega)^2 Var[sigmoid(h_1 (h_1 - h_2))]``, by a plain trapezoid grid."""
    h = np.linspace(-9 * sigma, 9 * sigma, 1201)
    weight = np.exp(-(h**2) / (2 * sigma**2))
    weight = np.outer(weight, weight) / weight.sum() ** 2
    s = 1 / (1 + np.exp(-h[:, None] * (h[:, None] - h[None])))
    variance = (weight * s**2).sum() - (weight * s).sum() ** 2
    expected = 2 * sigma**2 * (1 - omega) ** 2 * variance
    for A in (((0.6, 0.4), (0.4, 0.6)), ((0.3, 0.7), (0.8, 0.2))):
        mse = linear_baseline(Problem.paper(omega, sigma, A=A)).test_mse
        assert mse == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("correlation", [0.0, 0.4])
def test_against_a_fit_to_sampled_sentences(correlation):
    """Least squares of y on x in a finite-d sample, three tokens: 3 standard errors."""
    rng = np.random.default_rng(0)
    tokens = Tokens.isotropic(3, 0.8, correlation, positions=(1.0, 0.0, -1.0))
    p = Problem(tokens, 0.2 + 0.4 * np.eye(3), 0.3, 0.01)
    root = np.linalg.cholesky(tokens.rho)
    mse = []
    for _ in range(40):
        h = root @ rng.normal(size=(3, 2000))
        T = p.target(h[:, None])
        W = np.einsum("lkn->lk", T) / 2000
        E = T - W[:, :, None]
        mse.append(np.einsum("lkn,kj,ljn->", E, tokens.rho, E) / 2000 / 3)
    error = np.std(mse, ddof=1) / np.sqrt(len(mse))
    assert abs(np.mean(mse) - linear_baseline(p).test_mse) < 3 * error + 1e-3 * np.mean(mse)


def test_no_other_linear_map_is_better():
    p = Problem.paper()
    base = linear_baseline(p)
    h = np.random.default_rng(1).normal(0, 0.5, size=(2, 1, 200_000))
    T = p.target(h)

    def mse(W):
        E = T - W[:, :, None]
        return np.einsum("lkn,kj,ljn->", E, p.tokens.rho, E) / T.shape[2] / 2

    best = mse(base.weights)
    for step in 0.02 * np.random.default_rng(2).normal(size=(8, 2, 2)):
        assert mse(base.weights + step) > best
    assert best == pytest.approx(base.test_mse, rel=0.01)
