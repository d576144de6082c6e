"""Finite-size data of a problem: one draw per (sample ratio, seed, dimension). NumPy only.

At dimension d the commuting covariances of the tokens are diagonal: coordinate i belongs to the
spectral atom a(i) and has ``E[x_li x_ki] = gamma^{a(i)}_lk``. Encodings are
``p_l = sum_k c_lk e_k`` with orthonormal ``e_k`` of flat modulus, and the target directions ``Q*``
have iid N(0, 1) entries.

Every array of a draw comes from its own stream, a child of the root (seed, n, d): a draw does not
depend on what else is drawn, on the chunk size, or on the device that receives it.

Source of the ensemble: Cui, Behrens, Krzakala, Zdeborova, arXiv 2402.03902, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phasecore.checks import integer, number
from phasecore.problem import Problem

CHUNK = 1 << 21  # entries of x that exist at once besides what the caller keeps (16 MiB)
TEACHER, TRAIN, TEST, START = range(4)  # child streams of a draw


def sample_count(alpha: float, d: int) -> int:
    """Number of samples ``n = round(alpha d)``.

    Raises ``TypeError`` or ``ValueError`` unless alpha > 0, d >= 2 and n >= 1.
    """
    alpha = number("alpha", alpha, above=0.0)
    d = integer("d", d, minimum=2)
    n = round(alpha * d)
    if n < 1:
        raise ValueError(f"alpha: {alpha}, leaves no sample at d={d}")
    return n


@dataclass(frozen=True, eq=False)
class Draw:
    """One finite-size realisation: encodings, target directions, training and test sentences.

    Parameters
    ----------
    problem : Problem
    alpha : float > 0, sample ratio; there are ``n = round(alpha d)`` training sentences.
    d : int >= 2, dimension of a token.
    seed : int >= 0

    Raises
    ------
    TypeError, ValueError naming the argument and the value.
    """

    problem: Problem
    alpha: float
    d: int
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.problem, Problem):
            raise TypeError(f"problem: {self.problem!r}, expected phasecore.Problem")
        sample_count(self.alpha, self.d)
        integer("seed", self.seed, minimum=0)
        minimum_dimension(self.problem, self.d)

    @property
    def n(self) -> int:
        """Number of training sentences."""
        return sample_count(self.alpha, self.d)

    def generator(self, stream: int) -> np.random.Generator:
        """Independent generator of one child stream (TEACHER, TRAIN, TEST or START)."""
        root = (int(self.seed), self.n, int(self.d))
        return np.random.default_rng(np.random.SeedSequence(root, spawn_key=(stream,)))

    @cached_property
    def atoms(self) -> np.ndarray:
        """(d,) spectral atom a(i) of each coordinate."""
        return interleave(self.problem.tokens.weights, self.d)

    @cached_property
    def variances(self) -> np.ndarray:
        """(L, d) variance of coordinate i of token l: the diagonal of Sigma_l."""
        gammas = self.problem.tokens.covariances
        return np.diagonal(gammas, axis1=1, axis2=2)[self.atoms].T

    @cached_property
    def directions(self) -> np.ndarray:
        """(k, d) orthonormal directions e_k of the positional encodings."""
        return flat_directions(self.problem.tokens.positions.shape[1], self.atoms)

    @cached_property
    def encodings(self) -> np.ndarray:
        """(L, d) positional encodings p_l."""
        return self.problem.tokens.positions @ self.directions

    @cached_property
    def teacher(self) -> np.ndarray:
        """(d, t) target directions Q*."""
        return self.generator(TEACHER).standard_normal((self.d, self.problem.teacher_rank))

    def train_chunks(self) -> Iterator[np.ndarray]:
        """Training sentences x, n in all, in blocks of shape (c, L, d) that reuse one buffer."""
        return self._sentences(TRAIN, self.n)

    def test_chunks(self, n_test: int) -> Iterator[np.ndarray]:
        """Fresh sentences x, ``n_test`` in all, in blocks of shape (c, L, d) reusing one buffer."""
        return self._sentences(TEST, integer("n_test", n_test, minimum=1))

    def _sentences(self, stream: int, count: int) -> Iterator[np.ndarray]:
        length, d = self.problem.length, self.d
        roots = np.stack([triangular_root(g) for g in self.problem.tokens.covariances])
        mixing = roots[self.atoms].transpose(1, 2, 0)  # (L, L, d), lower triangular in tokens
        rng = self.generator(stream)
        buffer = np.empty((min(count, max(1, CHUNK // (length * d))), length, d))
        for start in range(0, count, len(buffer)):
            x = buffer[: count - start]
            rng.standard_normal(out=x)
            # From the last token down, so that each one still reads the raw normals before it.
            for row in reversed(range(length)):
                x[:, row] *= mixing[row, row]
                for column in range(row):
                    if mixing[row, column].any():
                        x[:, row] += mixing[row, column] * x[:, column]
            yield x


def interleave(weights: np.ndarray, d: int) -> np.ndarray:
    """(d,) atom of each coordinate; every prefix holds each atom within one of its share."""
    counts = np.zeros(len(weights))
    atoms = np.empty(d, dtype=np.intp)
    for i in range(d):
        atoms[i] = np.argmax(weights * (i + 1) - counts)
        counts[atoms[i]] += 1
    return atoms


def flat_directions(k: int, atoms: np.ndarray) -> np.ndarray:
    """(k, d) orthonormal vectors with entries of modulus 1/sqrt(d) up to O(1/d) corrections.

    Walsh sign patterns along each atom, so that two directions stay orthogonal within every atom:
    ``sum_{i in a} e_ki e_ji = weight_a delta_kj`` up to O(1/d). The first one is ``1_d / sqrt(d)``.
    """
    rank_in_atom = np.empty(len(atoms), dtype=np.int64)
    for atom in np.unique(atoms):
        members = np.flatnonzero(atoms == atom)
        rank_in_atom[members] = np.arange(len(members))
    common = rank_in_atom[None, :] & np.arange(k)[:, None]
    signs = np.ones(common.shape)
    while common.any():
        signs[common & 1 == 1] *= -1
        common >>= 1
    basis, triangle = np.linalg.qr(signs.T)
    return (basis * np.sign(np.diagonal(triangle))).T


def minimum_dimension(problem: Problem, d: int) -> None:
    """Raise ``ValueError`` if d coordinates cannot hold every atom and direction of the problem.

    Walsh patterns need ``2^ceil(log2 k)`` coordinates in the smallest atom.
    """
    k = problem.tokens.positions.shape[1]
    block = 1 << (k - 1).bit_length()
    needed = int(np.ceil((block + 1) / problem.tokens.weights.min())) if block > 1 else 2
    needed = max(needed, len(problem.tokens.weights))
    if d < needed:
        raise ValueError(f"d: {d}, expected at least {needed} for the tokens of this problem")


def triangular_root(gamma: np.ndarray) -> np.ndarray:
    """Lower triangular C with ``C C^T = gamma``, for positive semidefinite gamma (L, L)."""
    values, vectors = np.linalg.eigh(gamma)
    half = vectors * np.sqrt(np.clip(values, 0, None))
    return np.linalg.qr(half.T)[1].T
