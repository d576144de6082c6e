"""The prior side: conjugate overlaps -> law of one row of the weights -> overlaps.

At a direction e_i of the spectrum's atom ``a``, with position coefficients tau (k,) and teacher
coefficients pi (t,), the weights are Gaussian,

    W^T e_i = mu_a^T tau + nu_a pi + noise,    noise ~ N(0, s_a),   response G_a,
    G_a  = (Lambda + sum_lk gamma^a_lk V_hat_lk)^{-1}
    mu_a = P^T m_hat G_a,   nu_a = G_a sum_lk gamma^a_lk theta_hat_lk,
    s_a  = G_a (sum_lk gamma^a_lk q_hat_lk) G_a.

This law, and not the overlaps, is what the root finder moves: its size does not depend on L, and
any positive s and G give overlaps that are the covariance of something. Source: paper, eqs. of the
state evolution for a ridge; general form in the book's appendix on the replica computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phasecore.overlaps import ConjugateOverlaps, Overlaps
from phasecore.problem import Problem


@dataclass(frozen=True, eq=False)
class WeightLaw:
    """Law of a row of the weights at each of the K atoms.

    position : (K, k, R) coefficients mu on the directions of the positional encodings
    teacher : (K, R, t) coefficients nu on the target's directions
    noise : (K, R, R) covariance s of the rest
    response : (K, R, R) G
    """

    position: np.ndarray
    teacher: np.ndarray
    noise: np.ndarray
    response: np.ndarray

    def second_moment(self) -> np.ndarray:
        """(K, R, R) ``E[W_i W_i^T]`` at each atom."""
        aligned = np.einsum("aki,akj->aij", self.position, self.position)
        return self.noise + aligned + self.teacher @ self.teacher.swapaxes(1, 2)

    def overlaps(self, problem: Problem) -> Overlaps:
        """Overlaps of weights with this law: averages over the spectrum."""
        tokens = problem.tokens
        weighted = tokens.weights[:, None, None] * tokens.covariances
        return Overlaps(
            m=np.einsum("a,lk,aki->li", tokens.weights, tokens.positions, self.position),
            q=np.einsum("alk,aij->likj", weighted, self.second_moment()),
            V=np.einsum("alk,aij->likj", weighted, self.response),
            theta=np.einsum("alk,ait->likt", weighted, self.teacher),
        )

    def ridge_cost(self, problem: Problem) -> float:
        """``(1/2) Tr[Lambda W^T W]/d``, the ridge's share of the training loss."""
        diagonal = np.einsum("aii->ai", self.second_moment())
        return 0.5 * float(problem.tokens.weights @ diagonal @ problem.ridge)


@dataclass(frozen=True, eq=False)
class Tilt:
    """Conjugate overlaps contracted with each atom: what a row of the weights feels.

    field_position (K, k, R), field_teacher (K, R, t), variance (K, R, R), precision (K, R, R),
    the last with the ridge inside. Its law has response ``precision^{-1}``.
    """

    field_position: np.ndarray
    field_teacher: np.ndarray
    variance: np.ndarray
    precision: np.ndarray

    def law(self, response: np.ndarray | None = None) -> WeightLaw:
        """The law of the row; ``response`` replaces ``precision^{-1}`` inside a root finder."""
        G = np.linalg.inv(self.precision) if response is None else response
        return WeightLaw(
            position=self.field_position @ G,
            teacher=G @ self.field_teacher,
            noise=G @ self.variance @ G,
            response=G,
        )


def tilt(problem: Problem, hats: ConjugateOverlaps) -> Tilt:
    """Contract the conjugate overlaps with every atom of the spectrum."""
    gammas = problem.tokens.covariances
    precision = np.einsum("alk,likj->aij", gammas, hats.V_hat)
    field = problem.tokens.positions.T @ hats.m_hat
    return Tilt(
        field_position=np.broadcast_to(field, (len(gammas), *field.shape)),
        field_teacher=np.einsum("alk,likt->ait", gammas, hats.theta_hat),
        variance=np.einsum("alk,likj->aij", gammas, hats.q_hat),
        precision=np.diag(problem.ridge) + (precision + precision.swapaxes(1, 2)) / 2,
    )
