"""The proximal operator: never worse than a dense grid, stationary, and blind to its start."""

from __future__ import annotations

import numpy as np
import pytest

from phasecore import Problem, Tokens
from phasecore.proximal import Moreau, descend, follow_wells, lowest_well


def moreau(p: Problem, V: float, n: int, scale: float, seed: int = 0) -> Moreau:
    rng = np.random.default_rng(seed)
    w = scale * rng.normal(size=(p.length * p.n_fields, n))
    T = p.target(rng.normal(0, 0.5, size=(p.length, p.teacher_rank, n)))
    return Moreau(p.student, p.tokens.rho, np.eye(len(w)) / V, w, T)


@pytest.mark.parametrize(("V", "scale", "sigma"), [(11, 0.35, 0.5), (40, 0.2, 0.5), (80, 0.6, 1.0)])
def test_never_worse_than_a_dense_grid(V, scale, sigma):
    M = moreau(Problem.paper(sigma=sigma), V, 60, scale)
    z, energy, _ = prox(M)
    axis = np.linspace(-2.5, 2.5, 401)
    grid = np.stack(np.meshgrid(axis, axis)).reshape(2, -1)
    for node in range(60):
        one = M.take(np.full(grid.shape[1], node))
        assert energy[node] <= one.energy(grid).min() + 1e-12
    np.testing.assert_allclose(M.energy(z), energy, rtol=1e-7)


def prox(M: Moreau):
    z, nodes, rival = lowest_well(M, len(M.rho), M.w)
    return *follow_wells(M, z, nodes, rival)[:2], nodes


CASES = [Problem.paper(), Problem.paper(rank=2), Problem.paper(tied=False, correlation=0.3)]
CASES.append(Problem(Tokens.isotropic(3, positions=(1, 0, -1)), 0.2 + 0.4 * np.eye(3), 0.3, 0.01))


@pytest.mark.parametrize("p", CASES)
def test_stationary_and_below_the_value_at_w(p):
    M = moreau(p, 15.0, 500, 0.4)
    z, energy, _ = prox(M)
    _, grad, _ = M.derivatives(z)
    assert np.abs(grad).max() < 1e-8
    assert (energy <= M.energy(M.w) + 1e-12).all()


def test_many_random_starts_find_nothing_lower():
    M = moreau(Problem.paper(sigma=1.0), 60.0, 400, 0.6)
    _, energy, nodes = prox(M)
    assert len(nodes) > 20  # the case is one with several wells
    rng = np.random.default_rng(5)
    for _ in range(12):
        other = descend(M, 1.5 * rng.normal(size=M.w.shape))[1]
        assert (other < energy - 1e-9).mean() <= 0.003


def test_a_warm_start_in_the_wrong_well_is_left():
    M = moreau(Problem.paper(), 40.0, 500, 0.3)
    z, energy, _ = prox(M)
    wrong, _ = descend(M, -z)
    again = lowest_well(M, 2, wrong)[0]
    gap = M.energy(again) - energy
    assert (wrong * z).sum(0).min() < -0.01
    assert (np.abs(gap) > 1e-10).mean() <= 0.003


def test_following_two_wells_takes_the_lower_one():
    """Move w across a symmetric point: the minimiser jumps from one well to the other."""
    p = Problem.paper()
    T = np.repeat(p.target(np.array([[[1.2]], [[-0.9]]])), 2, axis=2)
    w = np.array([[0.05, -0.05], [0.01, -0.01]])
    M = Moreau(p.student, p.tokens.rho, np.eye(2) / 60, w, T)
    z, nodes, rival = lowest_well(M, 2, w)
    assert set(nodes) == {0, 1}
    mirrored = Moreau(p.student, p.tokens.rho, np.eye(2) / 60, -w, T)
    moved, energy, _ = follow_wells(mirrored, z, nodes, rival)
    np.testing.assert_allclose(moved, z[:, ::-1], atol=1e-7)
    np.testing.assert_allclose(energy, M.energy(z), rtol=1e-9)


def test_weak_coupling_limit():
    """V -> 0 pins z to w; first order: z = w - V grad loss(w)."""
    p = Problem.paper()
    M = moreau(p, 1e-5, 50, 0.5)
    z, _, _ = prox(M)
    _, grad, _ = p.student.derivatives(M.w.reshape(2, 1, -1), M.T, M.rho)
    np.testing.assert_allclose((z - M.w) / 1e-5, -grad, atol=1e-4)
