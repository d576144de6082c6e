"""The pictures show the rows and numbers they are given, on the Axes they are given."""

from __future__ import annotations

import inspect

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from phasecore import plotting

BRANCHES = ("positional", "semantic")
CURVES = pd.DataFrame(
    {
        "alpha": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0],
        "branch": np.repeat(BRANCHES, 3),
        "test_mse": [3.0, 3.5, 3.6, 2.5, 1.5, 1.0],
        "test_mse_stderr": 0.1,
        "status": ["converged"] * 5 + ["residual above tol"],
    }
)
MEANS = pd.DataFrame(
    {
        "alpha": [1.0, 1.0],
        "branch": BRANCHES,
        "mean": [3.1, 2.4],
        "low": [2.9, 2.3],
        "high": [3.4, 2.6],
        "theory": [3.0, 2.5],
    }
)
RUNS = pd.DataFrame(
    {
        "branch": np.repeat(BRANCHES, 2),
        "m_signed": [0.2, 0.3, -0.01, 0.02],
        "theta_signed": [0.01, -0.02, 0.15, 0.16],
        "test_mse": [3.0, 3.2, 2.3, 2.5],
    }
)
THEORY = pd.DataFrame({"branch": BRANCHES, "m": [0.25, 0.0], "theta": [0.0, 0.16]})
LINE = np.linspace(-0.25, 1.25, 7)
ATTENTION = np.array([[0.7, 0.3], [0.4, 0.6]])

# Every public function that draws, with what it draws.
CALLS = {
    "branch_curves": (CURVES, "test_mse"),
    "trained_means": (MEANS,),
    "baseline_line": (2.0,),
    "threshold_line": (1.25, r"$\alpha_c$"),
    "seeds_and_theory": (RUNS, MEANS, "test_mse"),
    "overlap_plane": (RUNS, THEORY),
    "attention_matrix": (ATTENTION,),
    "model_diagram": (),
    "attention_scatter": (np.array([0.5, 0.6]), np.array([0.55, 0.5]), "semantic"),
    "loss_along_line": (LINE, np.cos(LINE)),
    "gap_curve": ([1.0, 2.0], [-0.1, 0.4], MEANS.iloc[:1]),
}


@pytest.fixture
def ax():
    with plt.style.context([]):
        plotting.use_style()
        figure, ax = plt.subplots()
        yield ax
        plt.close(figure)


def test_every_function_is_drawn_below():
    functions = {
        name
        for name, item in inspect.getmembers(plotting, inspect.isfunction)
        if item.__module__ == plotting.__name__ and "ax" in inspect.signature(item).parameters
    }
    assert functions == {*CALLS, "sentence"}


@pytest.mark.parametrize("name", CALLS)
def test_draws_on_the_axes_it_is_given(ax: Axes, name: str):
    arguments = [a.copy() if hasattr(a, "copy") else a for a in CALLS[name]]
    other = ax.figure.add_subplot(1, 2, 2)
    untouched = len(other.get_children())
    before = len(ax.get_children())
    getattr(plotting, name)(ax, *arguments)
    ax.figure.canvas.draw()  # labels that mathtext cannot read raise here
    assert len(ax.get_children()) > before
    assert len(other.get_children()) == untouched
    for given, left in zip(CALLS[name], arguments, strict=True):
        assert np.all(given == left), "an argument was changed"


def test_only_converged_rows_are_drawn(ax: Axes):
    plotting.branch_curves(ax, CURVES, "test_mse", scale=10)
    drawn = {line.get_color(): line.get_xydata() for line in ax.get_lines()}
    np.testing.assert_allclose(drawn[plotting.COLORS["positional"]], [[1, 30], [2, 35], [3, 36]])
    np.testing.assert_allclose(drawn[plotting.COLORS["semantic"]], [[1, 25], [2, 15]])


def test_error_bars_end_at_low_and_high(ax: Axes):
    plotting.trained_means(ax, MEANS, scale=10)
    ends = [bar.get_segments()[0] for bar in ax.collections]  # type: ignore[attr-defined]
    np.testing.assert_allclose(ends[0], [[1, 29], [1, 34]])
    np.testing.assert_allclose(ends[1], [[1, 23], [1, 26]])


def test_the_row_of_a_matrix_is_the_token_that_attends(ax: Axes):
    plotting.attention_matrix(ax, ATTENTION)
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {(0, 0): "0.70", (1, 0): "0.30", (0, 1): "0.40", (1, 1): "0.60"}


def test_a_sentence_is_returned_for_its_colour_bar(ax: Axes):
    x = np.arange(6.0).reshape(2, 3)
    image = plotting.sentence(ax, x, "entries", limit=2.0)
    assert image.get_clim() == (-2.0, 2.0)
    np.testing.assert_array_equal(image.get_array(), x)


# Linear RGB as seen without one kind of cone: Machado, Oliveira, Fernandes, IEEE TVCG 15 (2009).
LACKING = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("vision", LACKING)
def test_branches_can_be_told_apart_with_any_colour_vision(vision: str):
    linear = [np.array(to_rgb(plotting.COLORS[branch])) ** 2.2 for branch in BRANCHES]
    seen = [np.clip(np.array(LACKING[vision]) @ color, 0, 1) ** (1 / 2.2) for color in linear]
    assert np.abs(seen[0] - seen[1]).max() > 0.3
    assert len(set(plotting.MARKERS.values())) == len(BRANCHES)
