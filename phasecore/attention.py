"""Attention as a function of local fields: value, gradient and Hessian of the loss.

The only place that knows the nonlinearity. Arrays put the nodes last, so that every operation
is elementwise over a contiguous axis: fields ``z`` are (L, R, N), attention is (L, L, N).

    chi_lk = beta z_l B z_k^T        S = activation(chi), row by row
    loss   = (1/2) Tr[(S - T) rho (S - T)^T]
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Activation(Protocol):
    """A map of each row of scores to a row of attention."""

    name: str

    def value(self, scores: Any, xp: Any = np) -> Any:
        """Attention of scores (L, L, N); rows run over axis 1. ``xp`` is numpy or torch."""
        ...

    def derivatives(self, scores: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First derivative ``J_lkj = dS_lk/dchi_lj`` and ``K_lij = sum_k u_lk d2S_lk/dchi_li dchi_lj``."""
        ...


class Softmax:
    """``S_lk = exp(chi_lk) / sum_j exp(chi_lj)``."""

    name = "softmax"

    def value(self, scores: Any, xp: Any = np) -> Any:
        weights = xp.exp(scores - xp.amax(scores, 1)[:, None])
        return weights / weights.sum(1)[:, None]

    def derivatives(self, scores: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        S = self.value(scores)
        J = -S[:, :, None] * S[:, None]
        centred = u - (S * u).sum(1)[:, None]
        K = J * (centred[:, :, None] + centred[:, None])
        diagonal = np.arange(len(S))
        J[:, diagonal, diagonal] += S
        K[:, diagonal, diagonal] += S * centred
        return J, K


ACTIVATIONS: dict[str, Activation] = {"softmax": Softmax()}


class Attention:
    """An activation applied to the bilinear scores ``beta z B z^T``."""

    def __init__(self, form: np.ndarray, activation: Activation, beta: float) -> None:
        self.form = beta * form
        self.activation = activation

    def scores(self, z: Any, xp: Any = np) -> Any:
        """(L, R, N) fields -> (L, L, N) scores."""
        form = self.form if xp is np else xp.as_tensor(self.form).to(z)
        return xp.einsum("lbn,kbn->lkn", xp.einsum("lan,ab->lbn", z, form), z)

    def value(self, z: Any, xp: Any = np) -> Any:
        """(L, R, N) fields -> (L, L, N) attention."""
        return self.activation.value(self.scores(z, xp), xp)

    def loss(self, z: np.ndarray, T: np.ndarray, rho: np.ndarray) -> np.ndarray:
        """``(1/2) Tr[(S-T) rho (S-T)^T]`` at each node, (N,)."""
        E = self.value(z) - T
        return 0.5 * (E * np.einsum("kj,ljn->lkn", rho, E)).sum((0, 1))

    def derivatives(
        self, z: np.ndarray, T: np.ndarray, rho: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (LR, N) and Hessian (LR, LR, N) of the loss in the fields.

        The chain rule goes through the scores: ``dchi_lk = dz_l B z_k + z_l B dz_k`` is linear in
        z, so the Hessian is ``X^T (d2 loss/dchi2) X`` plus the constant second derivative of chi.
        """
        L, R, N = z.shape
        right = np.einsum("ab,kbn->kan", self.form, z)  # d chi_lk / d z_l
        left = np.einsum("lan,ab->lbn", z, self.form)  # d chi_lk / d z_k
        scores = np.einsum("lbn,kbn->lkn", left, z)
        u = np.einsum("kj,ljn->lkn", rho, self.activation.value(scores) - T)
        J, K = self.activation.derivatives(scores, u)
        slope = np.einsum("lkjn,lkn->ljn", J, u)  # d loss / d chi
        curvature = np.einsum("lkin,lkjn->lijn", J, np.einsum("km,lmjn->lkjn", rho, J)) + K
        grad = np.einsum("lkn,kan->lan", slope, right) + np.einsum("lkn,lan->kan", slope, left)
        # X[l, k, (m, a)] = d chi_lk / d z_ma
        X = np.zeros((L, L, L, R, N))
        token = np.arange(L)
        X[token, :, token] += right
        X[:, token, token] += left[:, None]
        X = X.reshape(L, L, L * R, N)
        hess = np.einsum("lkpn,lkqn->pqn", X, np.einsum("lkjn,ljqn->lkqn", curvature, X))
        both = slope[:, None, :, None] * self.form[:, None, :, None]
        hess += (both + both.transpose(2, 3, 0, 1, 4)).reshape(L * R, L * R, N)
        return grad.reshape(L * R, N), hess
