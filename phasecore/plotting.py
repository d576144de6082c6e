"""Pictures of tables and arrays: every function draws on the Axes it is given and computes nothing.

One colour and one marker per phase, the same in every figure; labels sit beside what they name.
Imports matplotlib, which ``import phasecore`` does not load.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

# Vermilion, blue (Okabe and Ito) and dark grey: told apart with any colour vision, and in print.
COLORS = {"positional": "#D55E00", "semantic": "#0072B2", "linear baseline": "#555555"}
MARKERS = {"positional": "o", "semantic": "s"}
INK = "#222222"
PALE = "#EEF1F4"


def use_style() -> None:
    """Make phasecore.mplstyle the style of the figures that follow."""
    with resources.as_file(resources.files("phasecore") / "phasecore.mplstyle") as path:
        plt.style.use(path)


def branch_curves(
    ax: Axes, table: pd.DataFrame, y: str, *, x: str = "alpha", scale: float = 1.0
) -> None:
    """One line per branch: ``scale * table[y]`` against ``table[x]``, a band for ``y``'s error.

    Only converged rows are drawn.
    """
    converged = table[table["status"] == "converged"]
    for branch, rows in converged.groupby("branch"):
        color, values = COLORS[str(branch)], scale * rows[y]
        ax.plot(rows[x], values, color=color)
        if f"{y}_stderr" in rows:
            error = scale * rows[f"{y}_stderr"]
            ax.fill_between(rows[x], values - error, values + error, color=color, alpha=0.25, lw=0)


def trained_means(ax: Axes, table: pd.DataFrame, *, x: str = "alpha", scale: float = 1.0) -> None:
    """Points with error bars from a table with the columns branch, x, mean, low, high."""
    for branch, rows in table.groupby("branch"):
        name = str(branch)
        bars = np.abs(rows[["low", "high"]].to_numpy().T - rows["mean"].to_numpy())
        ax.errorbar(
            rows[x],
            scale * rows["mean"],
            scale * bars,
            fmt=MARKERS[name],
            color=COLORS[name],
            markerfacecolor="white",
            markeredgewidth=1.5,
            zorder=4,
        )


def baseline_line(ax: Axes, level: float) -> None:
    """Dashed horizontal line at the test error of linear positional attention, with its name."""
    color = COLORS["linear baseline"]
    ax.axhline(level, color=color, ls=(0, (4, 2)), lw=1.4)
    ax.annotate("linear baseline", (0.98, level), xycoords=ax.get_yaxis_transform(),
                xytext=(0, 4), textcoords="offset points", ha="right", color=color)  # fmt: skip


def threshold_line(ax: Axes, value: float, name: str) -> None:
    """Thin vertical line at a threshold, named at its top."""
    ax.axvline(value, color=INK, lw=0.8, ls=":")
    ax.annotate(
        name,
        (value, 1.0),
        xycoords=ax.get_xaxis_transform(),
        xytext=(4, -2),
        textcoords="offset points",
        va="top",
        color=INK,
    )


def seeds_and_theory(
    ax: Axes, runs: pd.DataFrame, means: pd.DataFrame, y: str, *, scale: float = 1.0
) -> None:
    """One column per branch: theory as a bar, every seed as a dot, the mean with its error bar.

    ``runs`` has one row per seed (branch and ``y``), ``means`` one row per branch with the
    columns branch, mean, low, high, theory.
    """
    for place, name in enumerate(("positional", "semantic")):
        color = COLORS[name]
        mean = means[means["branch"] == name]
        ax.hlines(scale * mean["theory"], place - 0.32, place + 0.32, color=color, lw=2.2)
        values = scale * runs.loc[runs["branch"] == name, y]
        ax.scatter(np.full(len(values), place - 0.16), values, s=14, color=color, alpha=0.45, lw=0)
        trained_means(ax, mean.assign(place=place + 0.14), x="place", scale=scale)
    ax.set_xticks([0, 1], ["positional", "semantic"])
    ax.set_xlim(-0.6, 1.6)


def overlap_plane(
    ax: Axes, runs: pd.DataFrame, theory: pd.DataFrame, *, scale: float = 1.0
) -> None:
    """Seeds in the plane of the signed overlaps, with the prediction of each branch as a plus."""
    ax.axhline(0, color=INK, lw=0.6)
    ax.axvline(0, color=INK, lw=0.6)
    for branch, rows in runs.groupby("branch"):
        name = str(branch)
        ax.scatter(scale * rows["m_signed"], scale * rows["theta_signed"], s=24, alpha=0.6,
                   color=COLORS[name], marker=MARKERS[name], lw=0)  # fmt: skip
    for row in theory.to_dict("records"):
        x, y, name = scale * row["m"], scale * row["theta"], row["branch"]
        ax.plot(x, y, marker="+", ms=15, mew=1.6, color=INK, zorder=5)
        ax.annotate(name, (x, y), xytext=(14, 14), textcoords="offset points",
                    color=COLORS[name])  # fmt: skip


def attention_matrix(ax: Axes, S: Any, title: str = "") -> None:
    """One (L, L) attention matrix: row l is how much token l takes from each token."""
    S = np.asarray(S)
    ax.imshow(S, vmin=0, vmax=1, cmap="Greys")
    for (row, column), entry in np.ndenumerate(S):
        ax.text(column, row, f"{entry:.2f}", ha="center", va="center",
                color="white" if entry > 0.58 else INK)  # fmt: skip
    ticks = np.arange(len(S))
    ax.set_xticks(ticks, ticks + 1)
    ax.set_yticks(ticks, ticks + 1)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title, loc="center")


def sentence(ax: Axes, x: Any, title: str, *, limit: float) -> Any:
    """Entries of an (L, columns) array as colours between -limit and limit; returns the image."""
    image = ax.imshow(np.asarray(x), cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
    ax.set_title(title)
    ax.spines[:].set_visible(False)
    return image


def model_diagram(ax: Axes) -> None:
    """The target and the student, side by side, from the sentence to the output."""
    ax.set(xlim=(0, 10), ylim=(0, 6.5))
    ax.axis("off")

    def box(x: float, y: float, text: str, width: float) -> None:
        corner, shape = (x - width / 2, y - 0.42), "round,pad=0.04,rounding_size=0.12"
        ax.add_patch(FancyBboxPatch(corner, width, 0.84, boxstyle=shape, lw=1.3, fc=PALE, ec=INK))
        ax.text(x, y, text, ha="center", va="center")

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2})

    columns = {
        2.3: (
            "target (never sees $p$)",
            r"fields  $h_l = Q_\star^\top x_l/\sqrt{d}$",
            r"$T=(1{-}\omega)\,\mathrm{softmax}(hh^\top)+\omega A$",
            r"$y = T\,x$",
        ),
        7.7: (
            "student (trained: $Q$)",
            r"fields  $z_l = Q^\top (x_l+p_l)/\sqrt{d}$",
            r"$S=\mathrm{softmax}(zz^\top)$",
            r"$f_Q(x) = S\,(x+p)$",
        ),
    }
    box(5.0, 0.5, r"sentence $x$:  $L$ tokens in $\mathbb{R}^d$", width=4.2)
    for x, (title, *steps) in columns.items():
        ax.text(x, 6.15, title, ha="center", va="center", weight="bold")
        for y, step in zip((2.2, 3.65, 5.1), steps, strict=True):
            box(x, y, step, width=4.3)
        arrow((x, 2.66), (x, 3.2))
        arrow((x, 4.11), (x, 4.65))
        arrow((5.0 + (x - 5.0) * 0.6, 0.96), (x, 1.74))
    ax.annotate("", (5.5, 5.1), (4.5, 5.1), arrowprops={"arrowstyle": "<|-|>", "color": INK})
    ax.text(5.0, 5.62, "risk", ha="center", va="center")
    ax.text(7.45, 1.26, "+ positions $p$", ha="left", va="center")


def attention_scatter(ax: Axes, target: Any, student: Any, branch: str) -> None:
    """Student attention against target attention, one dot per sentence, with the diagonal."""
    ax.plot([0, 1], [0, 1], color=INK, lw=0.8, ls=":")
    ax.scatter(target, student, s=5, alpha=0.35, lw=0, color=COLORS[branch], rasterized=True)
    ax.set_title(branch, color=COLORS[branch])


def loss_along_line(ax: Axes, s: Any, loss: Any) -> None:
    """Loss from the positional (s = 0) to the semantic minimum (s = 1), the ends marked."""
    s, loss = np.asarray(s), np.asarray(loss)
    ax.plot(s, loss, color=INK)
    for place, name in ((0.0, "positional"), (1.0, "semantic")):
        at = int(np.argmin(np.abs(s - place)))
        ax.plot(s[at], loss[at], MARKERS[name], color=COLORS[name], ms=7, zorder=4)
        ax.annotate(name, (s[at], loss[at]), xytext=(0, -9), textcoords="offset points",
                    ha="center", va="top", color=COLORS[name])  # fmt: skip
    ax.margins(y=0.22)


def gap_curve(ax: Axes, alpha: Any, gap: Any, points: pd.DataFrame, *, scale: float = 1.0) -> None:
    """A difference of losses against alpha, coloured by the branch that is lower; trained points.

    ``gap`` is positional minus semantic; ``points`` has the columns alpha, mean, low, high.
    """
    alpha, gap = np.asarray(alpha), scale * np.asarray(gap)
    ax.axhline(0, color=INK, lw=0.8)
    ax.plot(alpha, gap, color=INK)
    for lower, chosen in (("positional", gap < 0), ("semantic", gap > 0)):
        ax.fill_between(alpha, 0, gap, where=chosen, interpolate=True, color=COLORS[lower],
                        alpha=0.18, lw=0)  # fmt: skip
    for lower, place, side in (("semantic", 4, "bottom"), ("positional", -4, "top")):
        ax.annotate(f"{lower} lower", (0.97, 0), xycoords=ax.get_yaxis_transform(), ha="right",
                    va=side, xytext=(0, place), textcoords="offset points",
                    color=COLORS[lower])  # fmt: skip
    bars = np.abs(points[["low", "high"]].to_numpy().T - points["mean"].to_numpy())
    ax.errorbar(points["alpha"], scale * points["mean"], scale * bars, fmt="D", color=INK,
                markerfacecolor="white", markeredgewidth=1.5)  # fmt: skip
