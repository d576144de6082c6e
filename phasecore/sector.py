"""The symmetry sector of a branch: which entries of the weight law are free, and coordinates on it.

The model is invariant under z -> -z and, separately, under h -> -h. A branch that does not break
one of them has the corresponding overlap exactly zero: theta on the positional branch, m on the
semantic one. Rotations of the student's r directions are a gauge: each position or target
direction is given its own student direction where there are enough of them, and reflections then
also forbid noise correlations between directions that share nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phasecore.prior import Tilt, WeightLaw
from phasecore.problem import Problem
from phasecore.quadrature import sobol_normal

BRANCHES = ("positional", "semantic", "mixed")


@dataclass(frozen=True, eq=False)
class Sector:
    """Free entries of a :class:`WeightLaw` on a branch, shared by all atoms.

    position (k, R), teacher (R, t), pairs (R, R): True where an entry may differ from zero.
    """

    atoms: int
    position: np.ndarray
    teacher: np.ndarray
    pairs: np.ndarray

    @classmethod
    def of(cls, problem: Problem, branch: str) -> Sector:
        """The sector of a branch: "positional", "semantic", "mixed" (nothing pinned)."""
        r, k = problem.rank, problem.tokens.positions.shape[1]
        n_position = k if branch != "semantic" else 0
        n_teacher = problem.teacher_rank if branch != "positional" else 0
        # allowed[direction, axis]; position directions share axes, target directions do not
        allowed = np.zeros((n_position + n_teacher, r), dtype=bool)
        own = min(n_position, r)
        if own + n_teacher <= r:
            allowed[:n_position, :own] = np.tril(np.ones((n_position, own), dtype=bool))
            allowed[n_position + np.arange(n_teacher), own + np.arange(n_teacher)] = True
        else:
            allowed[:] = np.tril(np.ones(allowed.shape, dtype=bool))
        linked = np.eye(r, dtype=bool) | (allowed.T @ allowed)
        for _ in range(r):
            linked = linked @ linked
        fields = problem.axes
        position = np.zeros((k, len(fields)), dtype=bool)
        teacher = np.zeros((len(fields), problem.teacher_rank), dtype=bool)
        position[:n_position] = allowed[:n_position, fields]
        teacher[:, :n_teacher] = allowed[n_position:, fields].T
        return cls(len(problem.tokens.weights), position, teacher, linked[np.ix_(fields, fields)])

    @property
    def _upper(self) -> np.ndarray:
        return np.triu(self.pairs)

    def pack(self, law: WeightLaw) -> np.ndarray:
        """Coordinates: free means, then matrix logarithms of noise and response."""
        return self._join(law.position, law.teacher, _log(law.noise), _log(law.response))

    def unpack(self, x: np.ndarray) -> WeightLaw:
        """The law at coordinates x; pinned entries are exactly zero."""
        K, (k, R), t = self.atoms, self.position.shape, self.teacher.shape[1]
        sizes = [int(mask.sum()) for mask in (self.position, self.teacher, self._upper)]
        cuts = np.cumsum([K * sizes[0], K * sizes[1], K * sizes[2]])
        mu, nu, s, g = np.split(x, cuts)
        position, teacher = np.zeros((K, k, R)), np.zeros((K, R, t))
        position[:, self.position] = mu.reshape(K, -1)
        teacher[:, self.teacher] = nu.reshape(K, -1)
        return WeightLaw(position, teacher, self._exp(s), self._exp(g))

    def residual(self, law: WeightLaw, tilt: Tilt) -> np.ndarray:
        """Zero exactly at a fixed point with nonzero order parameter.

        The mean's residual is divided by the mean: the agnostic point (m = theta = 0) is then no
        root, and a search cannot end there unnoticed. The response enters through
        ``G^{1/2} precision G^{1/2} = 1``, defined also where ``precision`` is not positive.
        """
        new = tilt.law(law.response)
        root = _power(law.response, 0.5)
        unscale = _power(law.noise, -0.5)
        parts = []
        for name in ("position", "teacher"):
            old = getattr(law, name)
            parts.append((getattr(new, name) - old) / max(float(np.linalg.norm(old)), 1e-12))
        return self._join(
            parts[0],
            parts[1],
            _log(unscale @ new.noise @ unscale),
            np.eye(law.response.shape[1]) - root @ tilt.precision @ root,
        )

    @property
    def order_entries(self) -> slice:
        """Coordinates that are means of the weights, the order parameters of the branch."""
        return slice(0, self.atoms * int(self.position.sum() + self.teacher.sum()))

    def alignment(self, law: WeightLaw) -> float:
        """Share of the weights' second moment that is their mean: zero at the agnostic point."""
        total = np.einsum("aii->", law.second_moment())
        return float(1 - np.einsum("aii->", law.noise) / total)

    def _join(
        self, position: np.ndarray, teacher: np.ndarray, noise: np.ndarray, response: np.ndarray
    ) -> np.ndarray:
        upper = self._upper
        parts = (position[:, self.position], teacher[:, self.teacher])
        return np.concatenate([p.ravel() for p in (*parts, noise[:, upper], response[:, upper])])

    def _exp(self, flat: np.ndarray) -> np.ndarray:
        X = np.zeros((self.atoms, *self.pairs.shape))
        X[:, self._upper] = flat.reshape(self.atoms, -1)
        X = X + np.triu(X, 1).swapaxes(1, 2)
        values, vectors = np.linalg.eigh(X)
        return (vectors * np.exp(values)[:, None]) @ vectors.swapaxes(1, 2)


def _log(S: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(S)
    return (vectors * np.log(np.maximum(values, 1e-300))[:, None]) @ vectors.swapaxes(1, 2)


def _power(S: np.ndarray, p: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(S)
    return (vectors * (values**p)[:, None]) @ vectors.swapaxes(1, 2)


def starting_law(problem: Problem, sector: Sector) -> WeightLaw:
    """A rough guess: the amplitude that fits the target best when alpha is infinite.

    Each field is a common amplitude times its own directions; noise as large as the signal.
    """
    t, L = problem.teacher_rank, problem.length
    root = np.linalg.cholesky(np.kron(problem.tokens.rho, np.eye(t)))
    h = (root @ sobol_normal(L * t, 2**10, (0,)).points).reshape(L, t, -1)
    T = problem.target(h)
    unit = np.einsum("lk,kr->lr", problem.tokens.positions, sector.position)[:, :, None]
    unit = unit + np.einsum("rt,ltn->lrn", sector.teacher, h)
    amplitudes = np.geomspace(0.05, 3, 25)
    losses = [problem.student.loss(c * unit, T, problem.tokens.rho).mean() for c in amplitudes]
    c = float(amplitudes[int(np.argmin(losses))])
    R, K = problem.n_fields, sector.atoms
    eye = np.broadcast_to(np.eye(R), (K, R, R))
    return WeightLaw(
        position=np.broadcast_to(c * sector.position, (K, *sector.position.shape)),
        teacher=np.broadcast_to(c * sector.teacher, (K, *sector.teacher.shape)),
        noise=c**2 * eye,
        response=eye * 20,
    )
