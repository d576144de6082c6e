"""What the model is: data, target, student and ridge. No algorithm lives here.

A sentence is ``x`` of shape (L, d) with Gaussian tokens, the target is ``y = T x`` with
``T = (1-omega) softmax(x Q* Q*^T x^T / d) + omega A``, and the student attends with
``S = activation(chi)``, where ``chi`` is bilinear in its local fields ``z = (x+p) Q / sqrt(d)``.
The sample ratio ``alpha = n/d`` is an argument of the solvers, never part of the problem.

Source: Cui, Behrens, Krzakala, Zdeborova, arXiv 2402.03902; the general form is derived in the
book's appendix on the replica computation.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from phasecore.attention import ACTIVATIONS, Activation, Attention
from phasecore.checks import finite_array, integer, number

PAPER_A = ((0.6, 0.4), (0.4, 0.6))


@dataclass(frozen=True, eq=False)
class Tokens:
    """Gaussian tokens with positional encodings, in the limit d -> infinity.

    Parameters
    ----------
    positions : (L,) or (L, k)
        Coefficients of the encodings ``p_l`` on k orthonormal directions that are spread evenly
        over the spectrum. Only their Gram matrix enters the theory.
    covariances : (K, L, L)
        ``gamma^a_lk = E[x_li x_ki]`` for each atom ``a`` of the joint spectrum of the commuting
        cross-token covariances. One atom is an isotropic law; independent tokens are diagonal.
    weights : (K,)
        Fraction of the d directions that belongs to each atom; sums to 1.

    Raises
    ------
    TypeError, ValueError
        Naming the argument: wrong shapes, non-finite entries, an atom that is not symmetric and
        positive semidefinite, an average covariance that is not positive definite.
    """

    positions: np.ndarray
    covariances: np.ndarray
    weights: np.ndarray

    def __post_init__(self) -> None:
        positions = finite_array("positions", self.positions)
        if positions.ndim == 1:
            positions = positions[:, None]
        if positions.ndim != 2 or 0 in positions.shape:
            raise ValueError(f"positions: shape {positions.shape}, expected (L,) or (L, k)")
        length = positions.shape[0]
        if length < 2:
            raise ValueError(f"positions: {length} token, expected at least 2")
        gammas = finite_array("covariances", self.covariances)
        if gammas.ndim != 3 or gammas.shape[0] < 1 or gammas.shape[1:] != (length, length):
            raise ValueError(f"covariances: shape {gammas.shape}, expected (K, {length}, {length})")
        if not np.allclose(gammas, gammas.swapaxes(1, 2), rtol=0, atol=1e-12):
            raise ValueError("covariances: every atom must be a symmetric matrix")
        lowest = np.linalg.eigvalsh(gammas)[:, 0]
        if (lowest < -1e-12).any():
            raise ValueError(
                f"covariances: not positive semidefinite, smallest eigenvalue {lowest.min():.3g}"
            )
        weights = finite_array("weights", self.weights)
        if weights.shape != (len(gammas),):
            raise ValueError(f"weights: shape {weights.shape}, expected ({len(gammas)},)")
        if (weights <= 0).any() or abs(weights.sum() - 1) > 1e-9:
            raise ValueError(f"weights: {weights.tolist()} must be positive and sum to 1")
        if np.linalg.eigvalsh(np.einsum("a,alk->lk", weights, gammas))[0] < 1e-10:
            raise ValueError("covariances: the average over the spectrum is not positive definite")
        for name, value in (
            ("positions", positions),
            ("covariances", gammas),
            ("weights", weights),
        ):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @classmethod
    def isotropic(
        cls,
        length: int = 2,
        sigma: float = 0.5,
        correlation: float = 0.0,
        positions: Any = (1.0, -1.0),
    ) -> Tokens:
        """Tokens with ``Cov(x_l, x_k) = sigma^2 [(1-c) delta_lk + c] I_d``.

        Raises ``ValueError`` if sigma <= 0, if the correlation c leaves the open interval in which
        the covariance is positive definite, or if ``positions`` does not have ``length`` rows.
        """
        length = integer("length", length, minimum=2)
        sigma = number("sigma", sigma, above=0.0)
        c = number("correlation", correlation)
        if not -1 / (length - 1) < c < 1:
            raise ValueError(
                f"correlation: {c} makes the covariance singular or indefinite; "
                f"expected {-1 / (length - 1):.4g} < correlation < 1 for {length} tokens"
            )
        if len(np.atleast_1d(positions)) != length:
            raise ValueError(f"positions: {positions!r}, expected {length} rows")
        gamma = sigma**2 * ((1 - c) * np.eye(length) + c)
        return cls(np.asarray(positions), gamma[None], np.ones(1))

    @property
    def length(self) -> int:
        return self.positions.shape[0]

    @cached_property
    def rho(self) -> np.ndarray:
        """(L, L) matrix ``Tr(Sigma_lk)/d``: the metric of the loss and the covariance of h."""
        return np.einsum("a,alk->lk", self.weights, self.covariances)

    @property
    def sigma(self) -> float:
        """Root mean variance of a token coordinate (the paper's sigma for isotropic tokens)."""
        return float(np.sqrt(np.trace(self.rho) / self.length))


@dataclass(frozen=True, eq=False)
class Problem:
    """Target, student and ridge on given tokens.

    The student minimises ``sum_mu |y - f|_F^2 / (2d) + (1/2) sum_j lam_j |W_j|^2`` over the
    columns ``W_j`` of its weights: the r columns of Q when tied, those of (Q, K) when untied.

    Parameters
    ----------
    tokens : Tokens
    A : (L, L), rows are probabilities: the positional part of the target.
    omega : float in [0, 1], weight of the positional part.
    lam : float >= 0, or a pair for (Q, K) when untied. The loss is a sum over samples.
    teacher_rank, rank : int, t and r.
    tied : bool, score ``z z^T`` (tied) or ``z_Q z_K^T`` (untied, 2r fields per token).
    attention : name in ``phasecore.attention.ACTIVATIONS`` or an object with that protocol.
    beta : float > 0, inverse temperature of the student's attention.
    value : None. The student has no value matrix.

    Raises
    ------
    TypeError, ValueError naming the argument and the value.
    """

    tokens: Tokens
    A: np.ndarray
    omega: float
    lam: float | tuple[float, float]
    teacher_rank: int = 1
    rank: int = 1
    tied: bool = True
    attention: str | Activation = "softmax"
    beta: float = 1.0
    value: None = None

    def __init__(
        self,
        tokens: Tokens,
        A: Any,
        omega: float,
        lam: Any,
        *,
        teacher_rank: int = 1,
        rank: int = 1,
        tied: bool = True,
        attention: str | Activation = "softmax",
        beta: float = 1.0,
        value: None = None,
    ) -> None:
        if not isinstance(tokens, Tokens):
            raise TypeError(f"tokens: {type(tokens).__name__}, expected phasecore.Tokens")
        if not isinstance(tied, bool | np.bool_):
            raise TypeError(f"tied: {tied!r}, expected True or False")
        if value is not None:
            raise ValueError(f"value: {value!r}, a trainable value is not part of this model")
        checked = {
            "tokens": tokens,
            "A": _row_stochastic("A", A, tokens.length),
            "omega": number("omega", omega, minimum=0.0, maximum=1.0),
            "lam": _ridge(lam, bool(tied)),
            "teacher_rank": integer("teacher_rank", teacher_rank, minimum=1),
            "rank": integer("rank", rank, minimum=1),
            "tied": bool(tied),
            "attention": attention,
            "beta": number("beta", beta, above=0.0),
            "value": None,
        }
        for name, item in checked.items():
            object.__setattr__(self, name, item)
        _activation(attention)

    @classmethod
    def paper(
        cls,
        omega: float = 0.3,
        sigma: float = 0.5,
        lam: Any = 0.01,
        A: Any = PAPER_A,
        rank: int = 1,
        tied: bool = True,
        correlation: float = 0.0,
    ) -> Problem:
        """The paper's experiments: two tokens, encodings ``p_1 = -p_2`` of norm one, t = 1."""
        tokens = Tokens.isotropic(2, sigma, correlation)
        return cls(tokens, A, omega, lam, rank=rank, tied=tied)

    @property
    def length(self) -> int:
        return self.tokens.length

    @cached_property
    def score(self) -> np.ndarray:
        """(R, R) form B of the score ``chi_lk = z_l B z_k^T``."""
        eye = np.eye(self.rank)
        return eye if self.tied else np.kron([[0.0, 1.0], [0.0, 0.0]], eye)

    @cached_property
    def axes(self) -> np.ndarray:
        """(R,) student direction of each field: a reflection of one direction flips its fields."""
        return np.tile(np.arange(self.rank), 1 if self.tied else 2)

    @cached_property
    def ridge(self) -> np.ndarray:
        """(R,) ridge of each field's weight column."""
        lam = np.broadcast_to(np.atleast_1d(self.lam), (1 if self.tied else 2,))
        return np.repeat(lam, self.rank)

    @property
    def n_fields(self) -> int:
        """R, the number of student fields per token."""
        return len(self.score)

    @cached_property
    def student(self) -> Attention:
        return Attention(self.score, _activation(self.attention), self.beta)

    @cached_property
    def teacher(self) -> Attention:
        return Attention(np.eye(self.teacher_rank), ACTIVATIONS["softmax"], 1.0)

    def target(self, h: Any, xp: Any = np) -> Any:
        """Target ``T(h) = (1-omega) softmax(h h^T) + omega A``, (L, t, N) -> (L, L, N)."""
        A = self.A[:, :, None] if xp is np else xp.as_tensor(self.A[:, :, None].copy()).to(h)
        return (1 - self.omega) * self.teacher.value(h, xp) + self.omega * A

    def to_dict(self) -> dict[str, Any]:
        """Plain data (JSON types) from which ``from_dict`` rebuilds the same problem."""
        attention = self.attention if isinstance(self.attention, str) else self.attention.name
        lam = list(self.lam) if isinstance(self.lam, tuple) else self.lam
        return {
            "positions": self.tokens.positions.tolist(),
            "covariances": self.tokens.covariances.tolist(),
            "weights": self.tokens.weights.tolist(),
            "A": self.A.tolist(),
            "omega": self.omega,
            "lam": lam,
            "teacher_rank": self.teacher_rank,
            "rank": self.rank,
            "tied": self.tied,
            "attention": attention,
            "beta": self.beta,
            "value": self.value,
        }

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Problem:
        """Inverse of ``to_dict``. A custom attention must be registered in ``ACTIVATIONS``."""
        if not isinstance(d, dict):
            raise TypeError(f"d: {type(d).__name__}, expected a dictionary made by to_dict")
        known = set(cls.paper().to_dict())
        if set(d) != known:
            odd = sorted(map(str, known.symmetric_difference(d)))
            raise ValueError(f"d: missing or unknown keys {odd}, expected those of to_dict")
        d = dict(d)
        tokens = Tokens(*(np.asarray(d.pop(k)) for k in ("positions", "covariances", "weights")))
        return cls(tokens, d.pop("A"), d.pop("omega"), d.pop("lam"), **d)

    def digest(self) -> str:
        """Hexadecimal fingerprint, stable across processes and versions of Python."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest())


def _row_stochastic(name: str, value: Any, length: int) -> np.ndarray:
    A = finite_array(name, value)
    if A.shape != (length, length):
        raise ValueError(f"{name}: shape {A.shape}, expected ({length}, {length})")
    if (A < 0).any() or not np.allclose(A.sum(axis=1), 1, rtol=0, atol=1e-9):
        raise ValueError(f"{name}: {A.tolist()}, rows must be probabilities that sum to 1")
    A.setflags(write=False)
    return A


def _ridge(lam: Any, tied: bool) -> float | tuple[float, float]:
    if np.ndim(lam) == 0:
        return number("lam", lam, minimum=0.0)
    pair = tuple(number("lam", item, minimum=0.0) for item in lam)
    if tied or len(pair) != 2:
        raise ValueError(f"lam: {lam!r}, expected one number, or a pair (Q, K) when untied")
    return pair[0], pair[1]


def _activation(attention: str | Activation) -> Activation:
    if isinstance(attention, str):
        if attention not in ACTIVATIONS:
            raise ValueError(f"attention: {attention!r}, expected one of {sorted(ACTIVATIONS)}")
        return ACTIVATIONS[attention]
    if not isinstance(attention, Activation):
        raise TypeError(f"attention: {attention!r} has no name, value and derivatives")
    return attention
