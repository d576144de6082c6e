"""The accuracy of the fast solver, stated and judged by the slow map on nodes of its own.

At omega=.3, sigma=.5, lam=.01. The fast solver states its overlaps and hats, means over scrambles
with standard errors. At these overlaps the slow map is evaluated once, on independent scrambles;
``difference`` is that of the two in combined standard errors.

    python tests/reference/accuracy.py
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

from phasecore import Problem, state_evolution  # noqa: E402
from reference.slow_map import slow_channel, sobol_nodes  # noqa: E402

ALPHAS = (1.25, 2.0)
BRANCHES = ("positional", "semantic")
SLOW_SEED = 1000  # the fast scrambles are named (seed, scramble): never the same stream


class Row(NamedTuple):
    """One quantity of one fixed point; the slow map leaves NaN what it does not evaluate."""

    alpha: float
    branch: str
    quantity: str
    fast: float
    fast_stderr: float
    relative_stderr: float
    slow: float
    slow_stderr: float
    difference: float


class Size(NamedTuple):
    """Nodes and scrambles of the fast solve and of the slow sweep."""

    fast_nodes: int
    fast_scrambles: int
    slow_nodes: int
    slow_scrambles: int


SIZE = Size(2**15, 10, 2**8, 2**5)


def reduced(m: np.ndarray, q: np.ndarray, V: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """m_hat, q_hat, V_hat, theta_hat of two tokens that differ only in the sign of the encoding."""
    diagonals = [np.einsum("lala->", block) / 2 for block in (q, V, theta)]
    return np.array([(m[0, 0] - m[1, 0]) / 2, *diagonals])


def mean_and_stderr(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the rows of a table, one row a scramble."""
    return table.mean(0), table.std(0, ddof=1) / np.sqrt(len(table))


def compare(case: tuple[float, str], size: Size, seed: int = 0) -> list[Row]:
    """All stated quantities at one (alpha, branch) of the paper's problem."""
    alpha, branch = case
    problem = Problem.paper()
    solution = state_evolution(
        problem, alpha, branch, n_nodes=size.fast_nodes, scrambles=size.fast_scrambles, seed=seed
    )
    record = solution.record()
    rows = [Row(alpha, branch, "residual", record["residual"], *[np.nan] * 5)]
    for name in ("train_loss", "m", "theta", "q", "V"):
        value, error = record[name], record[f"{name}_stderr"]
        relative = error / value if value else np.nan
        rows.append(Row(alpha, branch, name, value, error, relative, *[np.nan] * 3))

    fast = [[run.test_mse, *reduced(*vars(run.conjugates).values())] for run in solution.runs]
    slow = []
    for scramble in range(size.slow_scrambles):
        nodes, _ = sobol_nodes(size.slow_nodes, 4, SLOW_SEED + seed + scramble)
        o = solution.overlaps
        channel = slow_channel(problem, alpha, o.m, o.q, o.V, o.theta, nodes)
        slow.append([channel.test_mse, *reduced(*channel.hats)])
    names = ("test_mse", "m_hat", "q_hat", "V_hat", "theta_hat")
    (a, da), (b, db) = mean_and_stderr(np.array(fast)), mean_and_stderr(np.array(slow))
    for i, name in enumerate(names):
        difference = (a[i] - b[i]) / np.hypot(da[i], db[i])
        relative = da[i] / abs(a[i])
        rows.append(Row(alpha, branch, name, a[i], da[i], relative, b[i], db[i], difference))
    return rows


def write_rows(rows: Sequence[NamedTuple], path: Path) -> None:
    """Write a table of named tuples, whole or not at all, and print it."""
    unfinished = path.with_suffix(".partial")
    with unfinished.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0]._fields)
        writer.writerows([[f"{x:.6g}" if isinstance(x, float) else x for x in r] for r in rows])
    os.replace(unfinished, path)
    print(path.read_text())


def read_rows(path: Path) -> dict[tuple[float, str, str], dict[str, float]]:
    """A written table, by (alpha, branch, quantity)."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    keys = [(float(r.pop("alpha")), r.pop("branch"), r.pop("quantity")) for r in rows]
    return dict(zip(keys, [{k: float(v) for k, v in r.items()} for r in rows], strict=True))


def main() -> None:
    """Compare every case, write and print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=HERE / "accuracy.csv")
    options = parser.parse_args()
    cases = [(alpha, branch) for alpha in ALPHAS for branch in BRANCHES]
    with ProcessPoolExecutor(options.jobs) as pool:
        tables = pool.map(partial(compare, size=SIZE), cases)
        write_rows([row for table in tables for row in table], options.output)


if __name__ == "__main__":
    main()
