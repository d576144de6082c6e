"""The channel side: overlaps -> local fields -> prox -> conjugate overlaps.

The target's fields h (L, t) and the student's fields w (L, R) are jointly Gaussian,

    (h, w) ~ N((0, m), C),   C = [[rho, theta^T], [theta, q]],

and g = V^{-1}(z - w) with z the proximal operator. Then

    m_hat = alpha E g,   q_hat = alpha E g g^T,
    [theta_hat, -V_hat] = alpha E[g (C^{-1}(h, w-m))^T].

The last line is Stein's lemma for alpha E[dg/d(h, w)]: it also counts the jumps of the proximal
operator, which the average of its derivative misses. Source: paper, state evolution; the joint
form is derived in the book's appendix on the replica computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from phasecore.overlaps import ConjugateOverlaps, Overlaps
from phasecore.problem import Problem
from phasecore.proximal import Moreau, follow_wells, lowest_well
from phasecore.quadrature import Rule


@dataclass(frozen=True, eq=False)
class Fields:
    """Local fields at the nodes of a rule, and the Cholesky factor they came from."""

    w: np.ndarray  # (LR, N)
    root: np.ndarray  # (L(t+R), L(t+R)), lower
    V: np.ndarray  # (LR, LR)


class Channel:
    """Conjugate overlaps as a deterministic function of overlaps, on frozen nodes.

    It remembers the minimiser of every node, so that the next call starts from it, and the second
    well of nodes that have one, so that a node jumps when its two wells cross.
    """

    def __init__(self, problem: Problem, rule: Rule) -> None:
        self.problem = problem
        self.rule = rule
        self.rho = problem.tokens.rho
        rho_h = np.kron(self.rho, np.eye(problem.teacher_rank))
        self.size_h = len(rho_h)
        self.h = np.linalg.cholesky(rho_h) @ rule.points[: self.size_h]
        self.T = problem.target(self.h.reshape(problem.length, -1, len(rule.weights)))
        self.z: np.ndarray | None = None
        self.contested = np.zeros(0, dtype=int)
        self.rival = np.zeros((problem.length * problem.n_fields, 0))
        self.sweeps = 0

    def fields(self, overlaps: Overlaps) -> Fields:
        """Student fields of these overlaps at the nodes. Raises LinAlgError if C has no root."""
        size_w = overlaps.m.size
        theta = overlaps.theta.reshape(size_w, self.size_h)
        C = np.block(
            [
                [np.kron(self.rho, np.eye(self.problem.teacher_rank)), theta.T],
                [theta, overlaps.q.reshape(size_w, size_w)],
            ]
        )
        if not (np.isfinite(C).all() and np.isfinite(overlaps.V).all()):
            raise np.linalg.LinAlgError("overlaps are not finite")
        root = np.linalg.cholesky(C)
        w = root[self.size_h :] @ self.rule.points + overlaps.m.reshape(-1, 1)
        return Fields(w, root, overlaps.V.reshape(size_w, size_w))

    def moreau(self, fields: Fields) -> Moreau:
        precision = np.linalg.inv(fields.V)
        return Moreau(self.problem.student, self.rho, precision, fields.w, self.T)

    def settle(self, overlaps: Overlaps, follow: bool = True) -> None:
        """Move every node to its global minimum; ``follow`` the second wells from here on."""
        moreau = self.moreau(self.fields(overlaps))
        start = moreau.w if self.z is None else self.z
        self.z, self.contested, self.rival = lowest_well(moreau, self.problem.length, start)
        if not follow:
            self.keep_wells()

    def keep_wells(self) -> None:
        """From here on every node stays in the well it is in: the map is then smooth."""
        self.contested, self.rival = self.contested[:0], self.rival[:, :0]

    def minimise(self, fields: Fields) -> tuple[np.ndarray, np.ndarray]:
        """Minimiser and Moreau envelope: the lower of the wells known at each node."""
        start = fields.w if self.z is None else self.z
        self.z, energy, self.rival = follow_wells(
            self.moreau(fields), start, self.contested, self.rival
        )
        return self.z, energy

    def conjugates(self, alpha: float, overlaps: Overlaps) -> ConjugateOverlaps:
        """One half sweep: overlaps -> conjugate overlaps."""
        fields = self.fields(overlaps)
        z, _ = self.minimise(fields)
        self.sweeps += 1
        g = np.linalg.solve(fields.V, z - fields.w)
        weighted = g * self.rule.weights
        # C^{-1} x = root^{-T} points, so E[g x^T C^{-1}] = E[g points^T] root^{-1}
        against = self.rule.points @ weighted.T
        stein = solve_triangular(fields.root, against, lower=True, trans=1, check_finite=False).T
        shape = overlaps.V.shape
        return ConjugateOverlaps(
            m_hat=alpha * weighted.sum(1).reshape(overlaps.m.shape),
            q_hat=alpha * (weighted @ g.T).reshape(shape),
            V_hat=-alpha * stein[:, self.size_h :].reshape(shape),
            theta_hat=alpha * stein[:, : self.size_h].reshape(overlaps.theta.shape),
        )

    def mean_losses(self, overlaps: Overlaps) -> tuple[float, float]:
        """Mean loss at the minimisers z and at the fresh fields w."""
        fields = self.fields(overlaps)
        z, _ = self.minimise(fields)
        shape = (self.problem.length, -1, z.shape[1])
        at_prox, at_fresh = (
            self.rule.mean(self.problem.student.loss(x.reshape(shape), self.T, self.rho))
            for x in (z, fields.w)
        )
        return float(at_prox), float(at_fresh)

    def mean_moreau(self, overlaps: Overlaps) -> float:
        """Mean Moreau envelope E M, for the free-entropy form of the training loss."""
        return float(self.rule.mean(self.minimise(self.fields(overlaps))[1]))
