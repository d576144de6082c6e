"""Attention: derivatives against automatic and numerical differentiation, and its invariances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phasecore.attention import Activation, Softmax
from phasecore.problem import Problem, Tokens

A3 = 0.2 + 0.4 * np.eye(3)
LINE = (1.0, 0.0, -1.0)


def problem(length: int, rank: int, tied: bool) -> Problem:
    tokens = Tokens.isotropic(
        length, 0.7, 0.2 if length == 3 else -0.4, positions=(1.0, 0.3, -1.0)[:length]
    )
    A = A3 if length == 3 else [[0.6, 0.4], [0.3, 0.7]]
    return Problem(tokens, A, 0.3, 0.01, rank=rank, tied=tied, beta=1.3)


CASES = [(length, rank, tied) for length in (2, 3) for rank in (1, 2) for tied in (True, False)]


def fields(p: Problem, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(p.length, p.n_fields, n))
    return z, p.target(rng.normal(size=(p.length, 1, n)))


@pytest.mark.parametrize(("length", "rank", "tied"), CASES)
def test_derivatives_equal_autograd(length, rank, tied):
    p = problem(length, rank, tied)
    z, T = fields(p)
    rho = p.tokens.rho
    zt = torch.tensor(z, requires_grad=True)
    E = p.student.value(zt, torch) - torch.tensor(T)
    loss = 0.5 * torch.einsum("lkn,kj,ljn->n", E, torch.tensor(rho), E)
    (grad,) = torch.autograd.grad(loss.sum(), zt, create_graph=True)
    flat = grad.reshape(-1, z.shape[2])
    rows = [torch.autograd.grad(row.sum(), zt, retain_graph=True)[0] for row in flat]
    hess = np.array([row.numpy().reshape(flat.shape) for row in rows])
    mine = p.student.derivatives(z, T, rho)
    np.testing.assert_allclose(mine[0], loss.detach().numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(mine[0], p.student.loss(z, T, rho), rtol=0, atol=1e-12)
    np.testing.assert_allclose(mine[1], flat.detach().numpy(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(mine[2], hess, rtol=0, atol=1e-8)


def test_loss_is_the_metric_form():
    """``(1/2) Tr[(S-T) rho (S-T)^T]`` written out node by node."""
    p = problem(3, 2, True)
    z, T = fields(p, 5)
    for n in range(5):
        chi = p.beta * z[:, :, n] @ z[:, :, n].T
        S = np.exp(chi) / np.exp(chi).sum(1, keepdims=True)
        E = S - T[:, :, n]
        expected = 0.5 * np.trace(E @ p.tokens.rho @ E.T)
        assert p.student.loss(z, T, p.tokens.rho)[n] == pytest.approx(expected, rel=1e-12)


def test_softmax_closed_form_equals_the_general_contraction():
    rng = np.random.default_rng(2)
    scores, T = rng.normal(size=(2, 3, 3, 20))
    rho = np.diag([1.0, 2.0, 0.5]) + 0.1
    closed = Softmax().bend(scores, T, rho)
    general = Activation.bend(Softmax(), scores, T, rho)
    for mine, other in zip(closed, general, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-13)


def test_rows_are_probabilities_even_for_huge_scores():
    S = Softmax().value(np.array([[[1e4], [-1e4]], [[3.0], [3.0]]]))
    np.testing.assert_allclose(S.sum(1), 1)
    np.testing.assert_allclose(S[:, :, 0], [[1, 0], [0.5, 0.5]], atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_attention_is_even_and_rotation_invariant(tied):
    p = problem(2, 2, tied)
    z, _ = fields(p)
    c, s = np.cos(0.7), np.sin(0.7)
    turn = np.kron(np.eye(1 if tied else 2), [[c, -s], [s, c]])
    S = p.student.value(z)
    np.testing.assert_allclose(p.student.value(-z), S, atol=1e-12)
    np.testing.assert_allclose(p.student.value(turn @ z), S, atol=1e-12)


def test_target_mixes_softmax_and_A():
    p = Problem.paper(omega=0.3)
    h = np.array([[[0.4]], [[-0.2]]])
    S = np.exp([0.16, -0.08]) / np.exp([0.16, -0.08]).sum()
    np.testing.assert_allclose(p.target(h)[0, :, 0], 0.7 * S + 0.3 * np.array([0.6, 0.4]))
