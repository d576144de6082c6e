"""The linear positional baseline f_W(x) = W x, with W of shape (L, L).

L^2 parameters and n of order d samples: the population optimum is learned, whatever alpha,

    W = E[T rho_h] rho^{-1} = E[T],    test_mse = (1/L) {E Tr[T rho T^T] - Tr[W rho W^T]}.

Source: paper, linear attention baseline (arXiv 2402.03902). T and x are correlated only through the
t target directions out of d, so ``x`` given h still has covariance rho in the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phasecore.observables import test_mse
from phasecore.problem import Problem
from phasecore.quadrature import gauss_hermite, sobol_normal

MAX_NODES = 2**18


@dataclass(frozen=True, eq=False)
class Baseline:
    """weights : (L, L) optimal W.  test_mse : E |y - W x|_F^2 / (d L)."""

    weights: np.ndarray
    test_mse: float


def linear_baseline(problem: Problem) -> Baseline:
    """Best linear positional map of the tokens, by quadrature over the target's fields.

    Gauss-Hermite where a tensor grid is affordable (the integrand is smooth: exact to rounding
    at L=2), scrambled Sobol otherwise. Raises TypeError if ``problem`` is not a Problem.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem: {type(problem).__name__}, expected phasecore.Problem")
    L, t = problem.length, problem.teacher_rank
    order = int(MAX_NODES ** (1 / (L * t)))
    rule = (
        gauss_hermite(L * t, min(order, 100))
        if order >= 16
        else sobol_normal(L * t, MAX_NODES, (0,))
    )
    rho = problem.tokens.rho
    h = np.linalg.cholesky(np.kron(rho, np.eye(t))) @ rule.points
    T = problem.target(h.reshape(L, t, -1))
    W = rule.mean(T)
    excess = T - W[:, :, None]
    spread = 0.5 * np.einsum("lkn,kj,ljn->n", excess, rho, excess, optimize=True)
    return Baseline(W, test_mse(float(rule.mean(spread)), L))
