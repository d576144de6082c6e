"""Order parameters of finite-size weights, the basin they lie in, and where runs start. NumPy only.

Weights are W of shape (d, R), one column per field: Q when tied, (Q, K) when untied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phasecore.sampling import START, Draw

# Size of the small random part that lets a start leave the exact symmetries of the loss.
SYMMETRY_BREAKING = 0.05
# An amplitude is called present above this many times its size for unrelated weights.
SIGNIFICANCE = 4.0


@dataclass(frozen=True)
class MeasuredOverlaps:
    """Overlaps of W with the problem it was trained on, in the normalisation of the theory.

    ``m[l] = W^T p_l / sqrt(d)`` (L, R), ``theta[l] = W^T Sigma_l Q* / d`` (L, R, t) and
    ``q[l] = W^T Sigma_l W / d`` (L, R, R), with the population covariance of the tokens.
    ``rho`` (L,) is Tr(Sigma_l)/d, ``pattern`` (L,) the coefficients of the encodings on the
    direction where they differ most. ``noise`` holds the root mean square size of the two
    amplitudes for weights of this norm that are independent of p and Q*.
    """

    m: np.ndarray
    theta: np.ndarray
    q: np.ndarray
    rho: np.ndarray
    pattern: np.ndarray
    noise: tuple[float, float]

    @classmethod
    def of(cls, weights: np.ndarray, draw: Draw) -> MeasuredOverlaps:
        """Overlaps of weights (d, R) with the encodings and the target directions of a draw."""
        d, tokens = draw.d, draw.problem.tokens
        m = draw.encodings @ weights / np.sqrt(d)
        left = np.einsum("li,ir->lri", draw.variances, weights) / d
        rho = np.diagonal(tokens.rho)
        size = np.linalg.norm(weights) / d
        encoding = np.sqrt((tokens.positions**2).sum(1).mean())
        meaning = np.sqrt(draw.problem.teacher_rank) * tokens.sigma
        noise = (float(size * encoding), float(size * meaning))
        pattern = leading_encoding(tokens.positions)[1]
        return cls(m, left @ draw.teacher, left @ weights, rho, pattern, noise)

    def record(self) -> dict[str, float]:
        """Sizes ``m``, ``theta``, ``q`` and signed values ``m_signed``, ``theta_signed``.

        The sizes are Frobenius norms averaged over tokens. They are positive by construction, so
        a mean of them over seeds cannot be compared with zero; the signed values can. Let u in
        R^R be the leading left singular vector of the dominant overlap, that is of the (R, L)
        matrix m when the positional part of the fields is the larger, else of the (R, L t) matrix
        theta. With c_l the sign of ``pattern[l]``, zero where that vanishes,

            m_signed = mean_l c_l u . m_l,      theta_signed = mean_l u . theta_l[:, 0],

        and the sign of u makes the dominant one of them non-negative. For two tokens with
        ``p_1 = -p_2`` and one field, ``|m_signed| = m`` and, if their covariances agree,
        ``|theta_signed| = theta``. The symmetries of the weights do not change either, and the
        mean over seeds of the other one is zero wherever the theory pins it to zero.
        """
        fields = self.m.shape[1]
        positional = self.amplitudes[0] >= self.amplitudes[1]
        dominant = self.m.T if positional else self.theta.transpose(1, 0, 2).reshape(fields, -1)
        u = np.linalg.svd(dominant)[0][:, 0]
        m_signed = float((np.sign(self.pattern) * (self.m @ u)).mean())
        theta_signed = float((self.theta[:, :, 0] @ u).mean())
        sign = -1.0 if (m_signed if positional else theta_signed) < 0 else 1.0
        return {
            "m": float(np.linalg.norm(self.m, axis=1).mean()),
            "theta": float(np.linalg.norm(self.theta, axis=(1, 2)).mean()),
            "q": float(np.linalg.norm(self.q, axis=(1, 2)).mean()),
            "m_signed": sign * m_signed,
            "theta_signed": sign * theta_signed,
        }

    @property
    def amplitudes(self) -> tuple[float, float]:
        """Size of a field due to position, |m_l|, and to meaning, |theta_l| / rho_l^{1/2}.

        Root mean squares over tokens.
        """
        positional = np.sqrt((self.m**2).sum(1).mean())
        semantic = np.sqrt(((self.theta**2).sum((1, 2)) / self.rho).mean())
        return float(positional), float(semantic)

    @property
    def basin(self) -> str:
        """Name of the basin: "positional", "semantic", "mixed" or "agnostic".

        An amplitude counts if it exceeds four times its size for weights that are independent of
        p and Q*, and half of the other one. At finite d the pinned overlap of a branch is of
        order 1/sqrt(d), not zero.
        """
        positional, semantic = self.amplitudes
        larger = max(positional, semantic)
        present = [
            amplitude > max(SIGNIFICANCE * noise, larger / 2)
            for amplitude, noise in zip((positional, semantic), self.noise, strict=True)
        ]
        names = {
            (True, False): "positional",
            (False, True): "semantic",
            (True, True): "mixed",
            (False, False): "agnostic",
        }
        return names[present[0], present[1]]


def starting_weights(draw: Draw, init: str, scale: float | None = None) -> np.ndarray:
    """(d, R) weights from which a run starts.

    "positional": ``Q = scale sqrt(d) e`` with e the direction on which the encodings differ most
    (for the paper's problem ``p_1`` itself); the default scale ``sigma^2`` puts |m| where the
    positional branch has it, while the full scale 1 lets runs leave the basin.
    "semantic": the columns of Q* times ``scale`` (default 0.5), as many as fit.
    "random": independent N(0, scale^2) entries (default 0.5).

    The first column of a positional or semantic start is exact; every other one also gets random
    entries, 5% of the scale, because a zero column and Q = K are exact symmetries of the loss.
    Untied, K starts at Q, or at -Q when A favours attention between tokens of opposite encodings.
    """
    problem, d = draw.problem, draw.d
    noise = draw.generator(START).standard_normal((d, problem.n_fields))
    if init == "random":
        return (0.5 if scale is None else scale) * noise
    query = np.zeros((d, problem.rank))
    flip = 1.0
    if init == "positional":
        scale = problem.tokens.sigma**2 if scale is None else scale
        direction, pattern = leading_encoding(problem.tokens.positions)
        query[:, 0] = np.sqrt(d) * direction @ draw.directions
        centred = problem.A - 1 / problem.length
        flip = -1.0 if pattern @ centred @ pattern < 0 else 1.0
    else:
        scale = 0.5 if scale is None else scale
        shared = min(problem.rank, problem.teacher_rank)
        query[:, :shared] = draw.teacher[:, :shared]
    weights = query if problem.tied else np.concatenate([query, flip * query], axis=1)
    noise[:, 0] = 0
    return scale * (weights + SYMMETRY_BREAKING * noise)


def leading_encoding(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit direction (k,) on which the encodings differ most, and their coefficients (L,) on it.

    Softmax attention compares tokens, so the mean encoding is taken out unless all are equal.
    """
    centred = positions - positions.mean(0)
    spread = centred if np.linalg.norm(centred) > 1e-9 else positions
    direction = np.linalg.svd(spread)[2][0]
    pattern = positions @ direction
    sign = 1.0 if pattern[np.argmax(np.abs(pattern) > 1e-9)] >= 0 else -1.0
    pattern = np.where(np.abs(pattern) > 1e-9, sign * pattern, 0.0)
    return sign * direction, pattern
