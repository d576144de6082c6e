"""Draw the figure of the README: both branches against alpha, theory and trained networks.

    python notebooks/readme_figure.py [PNG]

Some minutes on two cores. Nothing else depends on it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.optimize import root_scalar

import phasecore as pc
from phasecore import plotting
from phasecore.statistics import mean_interval

BRANCHES = ("positional", "semantic")
HERE = Path(__file__).parent


def theory_curves(problem: pc.Problem, n_nodes: int) -> pd.DataFrame:
    """Records of both branches on a grid of alpha; each solve starts from the one before it.

    Raises ConvergenceError if one of them fails.
    """
    records = []
    for branch in BRANCHES:
        solution = None
        for alpha in np.arange(2.4, 0.89, -0.05):
            solution = pc.state_evolution(
                problem, float(alpha), branch, n_nodes=n_nodes, scrambles=4, start=solution
            )
            records.append(solution.record())
    return pd.DataFrame(records)


def crossing(problem: pc.Problem, n_nodes: int) -> float:
    """Sample ratio at which the training losses of the two branches are equal."""

    def gap(alpha: float) -> float:
        ends = [
            pc.state_evolution(problem, alpha, branch, n_nodes=n_nodes, scrambles=4)
            for branch in BRANCHES
        ]
        return ends[0].train_loss - ends[1].train_loss

    return root_scalar(gap, bracket=(1.1, 1.4), xtol=1e-3).root


def trained_table(problem: pc.Problem, alphas: list[float], d: int, n_seeds: int) -> pd.DataFrame:
    """Means and 95% intervals over seeds of both losses of both branches.

    Raises RuntimeError if a run does not converge on the branch on which it started.
    """
    rows = []
    for alpha in alphas:
        for branch in BRANCHES:
            runs = pc.train(problem, alpha, d, range(n_seeds), init=branch)
            assert isinstance(runs, pd.DataFrame)  # the weights were not asked for
            if set(runs["status"]) != {"converged"}:
                raise RuntimeError(f"alpha = {alpha}, {branch}: {set(runs['status'])}")
            for name in ("train_loss", "test_mse"):
                interval = mean_interval(runs[name])._asdict()
                rows.append({"alpha": alpha, "branch": branch, "quantity": name} | interval)
    return pd.DataFrame(rows)


def draw(path: Path, *, n_nodes: int = 2**13, d: int = 1000, n_seeds: int = 16) -> None:
    """Compute everything and write the figure."""
    problem = pc.Problem.paper(omega=0.3)
    points = trained_table(problem, [1.0, 1.4, 1.8, 2.2], d, n_seeds)
    curves = theory_curves(problem, n_nodes)
    alpha_c = crossing(problem, n_nodes)

    plotting.use_style()
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.6))
    titles = {
        "train_loss": r"training loss per sample, $10^3\,\epsilon_t/\alpha$",
        "test_mse": r"test error, $10^3\,\epsilon_g$",
    }
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        means, table = points.query("quantity == @name").copy(), curves.copy()
        if name == "train_loss":
            for column in ("mean", "low", "high"):
                means[column] /= means["alpha"]
            for column in (name, f"{name}_stderr"):
                table[column] /= table["alpha"]
        plotting.branch_curves(ax, table, name, scale=1e3)
        plotting.trained_means(ax, means, scale=1e3)
        plotting.threshold_line(ax, alpha_c, rf"$\alpha_c={alpha_c:.2f}$")
        ax.set(xlabel=r"sample ratio  $\alpha = n/d$", title=title, xlim=(0.85, 2.45))
    axes[1].set_ylim(1.0, 4.1)
    for ax, heights in zip(axes, ((2.35, 1.79), (3.65, 1.5)), strict=True):
        for branch, height in zip(BRANCHES, heights, strict=True):
            ax.text(2.42, height, branch, color=plotting.COLORS[branch], ha="right", va="bottom")
    plotting.baseline_line(axes[1], 1e3 * pc.linear_baseline(problem).test_mse)
    note = f"lines: theory\npoints: trained, $d = {d}$,\n{n_seeds} seeds, 95% intervals"
    white = {"fc": "white", "ec": "none", "pad": 2}
    axes[0].text(0.9, 1.63, note, color=plotting.INK, size=9, bbox=white)
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the figure of the README.")
    default = HERE.parent / "book" / "_static" / "readme.png"
    parser.add_argument("png", nargs="?", type=Path, default=default)
    draw(parser.parse_args().png)
