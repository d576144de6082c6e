"""State evolution and training for a solvable model of dot-product attention."""

from typing import TYPE_CHECKING

from phasecore.baseline import linear_baseline
from phasecore.problem import Problem, Tokens
from phasecore.solution import ConvergenceError, Solution, Status
from phasecore.state_evolution import state_evolution

if TYPE_CHECKING:
    from phasecore.training import train

__all__ = [
    "ConvergenceError",
    "Problem",
    "Solution",
    "Status",
    "Tokens",
    "linear_baseline",
    "state_evolution",
    "train",
]


def __getattr__(name: str):
    """``train`` is loaded on first use: importing phasecore must not load torch."""
    if name == "train":
        from phasecore.training import train

        return train
    raise AttributeError(f"module 'phasecore' has no attribute {name!r}")
