"""State evolution and training for a solvable model of dot-product attention."""

from phasecore.problem import Problem, Tokens

__all__ = ["Problem", "Tokens"]
