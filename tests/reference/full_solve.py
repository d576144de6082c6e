"""Both branches at omega=.3, sigma=.5, lam=.01, solved with the slow map alone.

Unknowns are log q, the order parameter (m or theta) and log V of the paper's reduced form; the
order parameter that vanishes by symmetry is pinned. For each scramble: a global sweep,
``scipy.optimize.root`` with every minimisation warm-started from the previous sweep, and another
global sweep at the solution, until that confirms it. Errors are the spread over scrambles, and
``difference`` is that from the fast solver in combined standard errors.

    python tests/reference/full_solve.py
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import root

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

from phasecore import Problem, state_evolution  # noqa: E402
from reference.accuracy import mean_and_stderr, write_rows  # noqa: E402
from reference.slow_map import (  # noqa: E402
    Channel,
    Overlaps,
    free_energy,
    overlaps_from_hats,
    slow_channel,
    sobol_nodes,
    train_loss,
)

# (q, order parameter, V) near the answer: two digits, so that the search stays on the branch
STARTS = {
    (2.0, "positional"): (0.052, 0.26, 11.0),
    (2.0, "semantic"): (0.11, 0.16, 13.0),
    (1.25, "positional"): (0.047, 0.25, 15.0),
    (1.25, "semantic"): (0.082, 0.12, 18.0),
}
NODES, SCRAMBLES = 2**10, 6
FAST = {"n_nodes": 2**15, "scrambles": 10}


class Row(NamedTuple):
    """One quantity of one fixed point; ``residual`` and ``seconds`` are of the slow solve alone."""

    alpha: float
    branch: str
    quantity: str
    slow: float
    slow_stderr: float
    fast: float
    fast_stderr: float
    difference: float


class Branch:
    """Fixed-point residual of one branch on frozen nodes."""

    def __init__(self, problem: Problem, alpha: float, name: str, nodes: np.ndarray) -> None:
        self.problem, self.alpha, self.nodes = problem, alpha, nodes
        self.positional = name == "positional"
        self.z: np.ndarray | None = None

    def overlaps(self, x: np.ndarray) -> Overlaps:
        """(log q, order parameter, log V) to full overlaps, the same for both tokens."""
        eye = np.eye(2)[:, None, :, None]
        order = float(x[1])
        m = self.problem.tokens.positions * (order if self.positional else 0.0)
        theta = eye * (0.0 if self.positional else order)
        return Overlaps(m, np.exp(x[0]) * eye, np.exp(x[2]) * eye, theta)

    def channel(self, x: np.ndarray, multistart: bool) -> Channel:
        """One sweep with the pinned conjugate set to zero; it remembers the minimisers."""
        channel = slow_channel(
            self.problem,
            self.alpha,
            *self.overlaps(x),
            self.nodes,
            warm=self.z,
            multistart=multistart,
        )
        self.z = channel.z
        pinned = "theta" if self.positional else "m"
        zero = np.zeros_like(getattr(channel.hats, pinned))
        return channel._replace(hats=channel.hats._replace(**{pinned: zero}))

    def residual(self, x: np.ndarray, channel: Channel | None = None) -> np.ndarray:
        """New unknowns minus old ones, from a warm sweep unless a channel is given."""
        channel = channel or self.channel(x, multistart=False)
        new = overlaps_from_hats(self.problem, channel.hats)
        order = new.m[0, 0] if self.positional else new.theta[0, 0, 0, 0]
        return np.array([np.log(new.q[0, 0, 0, 0]), order, np.log(new.V[0, 0, 0, 0])]) - x

    def solve(self, x: np.ndarray, rounds: int = 5, tol: float = 1e-4) -> dict[str, float]:
        """Observables at the fixed point and the residual of the last global sweep."""
        channel = self.channel(x, multistart=True)
        for _ in range(rounds):
            options = {"xtol": 1e-5, "eps": 1e-6, "factor": 0.1}
            x = root(self.residual, x, method="hybr", options=options).x
            channel = self.channel(x, multistart=True)
            worst = float(np.abs(self.residual(x, channel)).max())
            if worst < tol:
                break
        return {
            "q": float(np.exp(x[0])),
            "m" if self.positional else "theta": float(x[1]),
            "V": float(np.exp(x[2])),
            "train_loss": train_loss(self.problem, self.alpha, channel),
            "free_energy": free_energy(self.problem, self.alpha, self.overlaps(x), channel),
            "test_mse": channel.test_mse,
            "residual": worst,
        }


def solve(
    alpha: float, name: str, nodes: int = NODES, scrambles: int = SCRAMBLES, seed: int = 0
) -> dict[str, np.ndarray]:
    """Slow fixed points of the paper's problem, one entry a scramble."""
    q, order, V = STARTS[alpha, name]
    solutions = []
    for scramble in range(scrambles):
        points, _ = sobol_nodes(nodes, 4, seed + scramble)
        branch = Branch(Problem.paper(), alpha, name, points)
        solutions.append(branch.solve(np.array([np.log(q), order, np.log(V)])))
        print(alpha, name, scramble, solutions[-1], file=sys.stderr, flush=True)
    return {key: np.array([s[key] for s in solutions]) for key in solutions[0]}


def compare(alpha: float, name: str) -> list[Row]:
    """Slow and fast values of every quantity; both forms of the loss against the same fast one."""
    began = time.perf_counter()
    table = solve(alpha, name)
    seconds, residual = time.perf_counter() - began, table.pop("residual").max()
    fast = state_evolution(Problem.paper(), alpha, name, **FAST).record()
    fast |= {"free_energy": fast["train_loss"], "free_energy_stderr": fast["train_loss_stderr"]}
    rows = []
    for key, values in table.items():
        slow, error = mean_and_stderr(values)
        value, its_error = fast[key], fast[f"{key}_stderr"]
        difference = (slow - value) / np.hypot(error, its_error)
        rows.append(Row(alpha, name, key, slow, error, value, its_error, difference))
    rows.append(Row(alpha, name, "residual", residual, *[np.nan] * 4))
    return [*rows, Row(alpha, name, "seconds", seconds, *[np.nan] * 4)]


def main() -> None:
    """Solve every case, write and print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE / "full_solve.csv")
    options = parser.parse_args()
    write_rows([row for case in STARTS for row in compare(*case)], options.output)


if __name__ == "__main__":
    main()
