"""Both branches at omega=.3, sigma=.5, lam=.01, solved with the slow map alone.

Unknowns are log q, the order parameter (m or theta) and log V of the paper's reduced form; the
order parameter that vanishes by symmetry is pinned. For each scramble: a global sweep,
``scipy.optimize.root`` with every minimisation warm-started from the previous sweep, and another
global sweep at the solution, until that confirms it. Errors are the spread over scrambles.

    python tests/reference/full_solve.py --alphas 2 1.25
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path

import numpy as np
from scipy.optimize import root

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

from phasecore.problem import Problem  # noqa: E402
from reference.slow_map import (  # noqa: E402
    Channel,
    Overlaps,
    free_energy,
    overlaps_from_hats,
    slow_channel,
    sobol_nodes,
    train_loss,
)

# (q, order parameter, V) near the answer at alpha = 2
STARTS = {"positional": (0.0525, 0.257, 11.7), "semantic": (0.114, 0.157, 12.2)}


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
            "order": float(x[1]),
            "V": float(np.exp(x[2])),
            "train_loss": train_loss(self.problem, self.alpha, channel),
            "free_energy": free_energy(self.problem, self.alpha, self.overlaps(x), channel),
            "test_mse": channel.test_mse,
            "residual": worst,
        }


def main() -> None:
    """Solve, print and write one row for each alpha and branch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alphas", type=float, nargs="+", default=[2.0])
    parser.add_argument("--nodes", type=int, default=512, help="a power of two")
    parser.add_argument("--scrambles", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=HERE / "full_solve.csv")
    options = parser.parse_args()
    problem = Problem.paper()
    rows = []
    for alpha in options.alphas:
        for name, (q, order, V) in STARTS.items():
            began = time.perf_counter()
            solutions = []
            for scramble in range(options.scrambles):
                nodes, _ = sobol_nodes(options.nodes, 4, options.seed + scramble)
                branch = Branch(problem, alpha, name, nodes)
                solution = branch.solve(np.array([np.log(q), order, np.log(V)]))
                solutions.append(solution)
                print(alpha, name, scramble, solution, flush=True)
            row: dict[str, float | str] = {
                "alpha": alpha,
                "branch": name,
                "omega": problem.omega,
                "sigma": problem.tokens.sigma,
                "lam": float(problem.lam),
                "nodes": options.nodes,
                "scrambles": options.scrambles,
                "seed": options.seed,
            }
            for key in solutions[0]:
                values = np.array([s[key] for s in solutions])
                if key == "residual":
                    row["residual_max"] = values.max()
                else:
                    row[key] = values.mean()
                    row[f"{key}_stderr"] = values.std(ddof=1) / np.sqrt(len(values))
            row["seconds"] = round(time.perf_counter() - began, 1)
            rows.append(row)
    partial = options.output.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    os.replace(partial, options.output)


if __name__ == "__main__":
    main()
