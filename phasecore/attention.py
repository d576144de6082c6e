"""Attention as a function of local fields: value, gradient and Hessian of the loss.

The only place that knows the nonlinearity. Arrays put the nodes last, so that every operation
is elementwise over a contiguous axis: fields ``z`` are (L, R, N), attention is (L, L, N).

    chi_lk = beta z_l B z_k^T        S = activation(chi), row by row
    loss   = (1/2) Tr[(S - T) rho (S - T)^T]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class Activation(ABC):
    """A map of each row of scores to a row of attention.

    A subclass states its ``name``, its ``value`` and its ``derivatives``; rows run over axis 1.
    """

    name: str

    @abstractmethod
    def value(self, scores: Any, xp: Any = np) -> Any:
        """Attention of scores (L, L, N). ``xp`` is numpy or torch."""

    @abstractmethod
    def derivatives(self, scores: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``J_lkj = dS_lk/dchi_lj`` and ``K_lij = sum_k u_lk d^2 S_lk/dchi_li dchi_lj``."""

    def bend(
        self, scores: np.ndarray, T: np.ndarray, rho: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Loss (N,), and its first (L, L, N) and second (L, L, L, N) derivatives in each row."""
        E = self.value(scores) - T
        u = rho @ E
        J, K = self.derivatives(scores, u)
        slope = np.einsum("lkjn,lkn->ljn", J, u)
        rho_J = np.einsum("km,lmjn->lkjn", rho, J)
        return 0.5 * (E * u).sum((0, 1)), slope, np.einsum("lkin,lkjn->lijn", J, rho_J) + K


class Softmax(Activation):
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

    def bend(
        self, scores: np.ndarray, T: np.ndarray, rho: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The closed form: J = diag(S) - S S^T makes ``J rho J + K`` an outer product in S."""
        S = self.value(scores)
        E = S - T
        u = rho @ E
        loss = 0.5 * (E * u).sum((0, 1))
        u -= (S * u).sum(1)[:, None]
        slope = S * u
        pull = rho @ S
        mean = (S * pull).sum(1)
        pull += u
        curvature = rho[:, :, None] + (mean[:, None] - pull)[:, :, None] - pull[:, None]
        curvature *= S[:, :, None]
        curvature *= S[:, None]
        for k in range(len(S)):
            curvature[:, k, k] += slope[:, k]
        return loss, slope, curvature


ACTIVATIONS: dict[str, Activation] = {"softmax": Softmax()}


class Attention:
    """An activation applied to the bilinear scores ``beta z B z^T``."""

    def __init__(self, form: np.ndarray, activation: Activation, beta: float) -> None:
        self.form = beta * form
        self.activation = activation

    def value(self, z: Any, xp: Any = np) -> Any:
        """(L, R, N) fields -> (L, L, N) attention."""
        form = self.form if xp is np else xp.as_tensor(self.form).to(z)
        left = xp.einsum("lan,ab->lbn", z, form)
        return self.activation.value((left[:, None] * z[None]).sum(2), xp)

    def loss(self, z: np.ndarray, T: np.ndarray, rho: np.ndarray) -> np.ndarray:
        """``(1/2) Tr[(S-T) rho (S-T)^T]`` at each node, (N,)."""
        E = self.value(z) - T
        return 0.5 * (E * (rho @ E)).sum((0, 1))

    def derivatives(
        self, z: np.ndarray, T: np.ndarray, rho: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Loss (N,), its gradient (LR, N) and its Hessian (LR, LR, N) in the fields.

        The chain rule goes through the scores: ``dchi_lk = dz_l B z_k + z_l B dz_k`` is linear in
        z, so the Hessian is that of the activation between two such factors, plus the constant
        second derivative of chi.
        """
        L, R, N = z.shape
        right = self.form @ z  # d chi_lk / d z_l
        left = self.form.T @ z  # d chi_lk / d z_k
        scores = (left[:, None] * z[None]).sum(2)
        loss, slope, curvature = self.activation.bend(scores, T, rho)
        hess = np.empty((L, R, L, R, N))
        grad = np.zeros((L, R, N))
        # bent_l,i,a = sum_k curvature_l,i,k right_k,a: one token moves as query, one as key
        bent = curvature[:, :, 0, None] * right[0]
        for k in range(1, L):
            bent += curvature[:, :, k, None] * right[k]
        for a in range(R):
            for k in range(L):
                grad[:, a] += slope[:, k] * right[k, a] + slope[k] * left[k, a]
            for b in range(R):
                block = bent[:, :, a] * left[:, b, None] + self.form[a, b] * slope
                swap = bent[:, :, b] * left[:, a, None] + self.form[b, a] * slope
                block += swap.swapaxes(0, 1)
                for k in range(L):
                    block += (left[k, a] * left[k, b]) * curvature[k]
                    block[np.arange(L), np.arange(L)] += bent[:, k, a] * right[k, b]
                hess[:, a, :, b] = block
        return loss, grad.reshape(L * R, N), hess.reshape(L * R, L * R, N)
