"""What a solve returns: the fixed point, how the search ended, and its error bars."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from phasecore.overlaps import ConjugateOverlaps, Overlaps
from phasecore.prior import WeightLaw
from phasecore.problem import Problem


class Status(Enum):
    """How a solve ended; the value is the sentence to show."""

    CONVERGED = "converged"
    BELOW_RESOLUTION = (
        "order parameter below quadrature resolution: not distinguishable from the agnostic fixed "
        "point (m = theta = 0); raise n_nodes, or the branch does not exist here"
    )
    NOT_FOUND = (
        "branch not found: no start led to a fixed point with a nonzero order parameter; "
        "pass start= from a nearby alpha if the branch is known to exist there"
    )
    NOT_CONVERGED = (
        "residual above tol: the frozen nodes may have no root this close to the end of the "
        "branch; raise n_nodes, loosen tol or change seed"
    )


class ConvergenceError(RuntimeError):
    """The solve did not converge; ``.solution`` holds what was found, with its status."""

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        super().__init__(
            f"{solution.branch} branch at alpha={solution.alpha:g}: {solution.status.value} "
            f"(residual {solution.residual:.2g}, n_nodes={solution.n_nodes})"
        )


@dataclass(frozen=True, eq=False)
class Solution:
    """A fixed point of the state evolution on one branch.

    overlaps, conjugates : order parameters (see :mod:`phasecore.overlaps`)
    law : the law of a row of the weights, a warm start for a nearby problem
    train_loss, test_mse : see :mod:`phasecore.observables`
    residual : largest relative residual of one sweep, with every node at its global minimum
    resolution : quadrature error of the order parameter on one node set, estimated only where the
        order parameter is small enough to be doubted (NaN elsewhere)
    sweeps : evaluations of the map on the full node set
    runs : the single-scramble solutions when scrambles > 1; then the fields above are their means
    """

    problem: Problem
    alpha: float
    branch: str
    status: Status
    overlaps: Overlaps
    conjugates: ConjugateOverlaps
    law: WeightLaw
    train_loss: float
    test_mse: float
    residual: float
    resolution: float
    n_nodes: int
    seed: int
    sweeps: int
    runs: tuple[Solution, ...] = ()

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    def _values(self) -> dict[str, float]:
        losses = {"train_loss": self.train_loss, "test_mse": self.test_mse}
        return self.overlaps.magnitudes() | losses

    def stderr(self) -> dict[str, float]:
        """Standard error of the mean over scrambles for m, theta, q, V, train_loss, test_mse.

        Empty when there is a single scramble: one node set cannot state its own error.
        """
        if len(self.runs) < 2:
            return {}
        table = [run._values() for run in self.runs]
        n = len(table)
        return {
            name: float(np.std([row[name] for row in table], ddof=1) / math.sqrt(n))
            for name in table[0]
        }

    def record(self) -> dict[str, Any]:
        """One row of a table: alpha, branch, m, theta, q, V, two losses, residual, status.

        m, theta, q, V are raw (not divided by sigma^2): Frobenius norms averaged over tokens,
        invariant under sign and O(r). With several scrambles their means, and ``*_stderr``.
        """
        values = self._values()
        if self.runs:
            rows = [run._values() for run in self.runs]
            values = {name: float(np.mean([row[name] for row in rows])) for name in values}
        head = {"alpha": self.alpha, "branch": self.branch}
        tail = {"residual": self.residual, "status": self.status.value}
        errors = {f"{name}_stderr": error for name, error in self.stderr().items()}
        return head | values | tail | errors
