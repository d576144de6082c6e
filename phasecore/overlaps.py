"""Order parameters and their conjugates: two types, so that a hat cannot be swapped by mistake.

Every overlap carries both tokens: q_lk = W^T Sigma_lk W / d, and so on. Independent tokens have
zero blocks off the diagonal; nothing else distinguishes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Order parameters of the student.

    m : (L, R)         m_l = W^T p_l / sqrt(d), positional overlap
    q : (L, R, L, R)   q_lk = W^T Sigma_lk W / d, self-overlap
    V : (L, R, L, R)   response of the fields, G-weighted covariance
    theta : (L, R, L, t)   theta_lk = W^T Sigma_lk Q* / d, semantic overlap
    """

    m: np.ndarray
    q: np.ndarray
    V: np.ndarray
    theta: np.ndarray

    def magnitudes(self) -> dict[str, float]:
        """Frobenius norms of the single-token blocks, averaged over tokens.

        Invariant under sign flips and O(r) rotations of the student's directions.
        """
        norms = {"m": np.linalg.norm(self.m, axis=1).mean()}
        for name in ("theta", "q", "V"):
            blocks = np.einsum("lalb->lab", getattr(self, name))
            norms[name] = np.sqrt((blocks**2).sum((1, 2))).mean()
        return {name: float(value) for name, value in norms.items()}


@dataclass(frozen=True, eq=False)
class ConjugateOverlaps:
    """Conjugate order parameters, same shapes as :class:`Overlaps`.

    m_hat = alpha E g,  q_hat = alpha E g g^T,  V_hat = -alpha E dg/dw,  theta_hat = alpha E dg/dh,
    the derivatives in Stein form (see :mod:`phasecore.channel`).
    """

    m_hat: np.ndarray
    q_hat: np.ndarray
    V_hat: np.ndarray
    theta_hat: np.ndarray
