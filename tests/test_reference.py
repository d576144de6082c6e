"""The fast solver against the slow reference map, which shares with it only ``Problem``."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from reference import slow_map
from reference.accuracy import ALPHAS, BRANCHES, Size, compare, reduced

from phasecore import Problem, Tokens, state_evolution
from phasecore.channel import Channel
from phasecore.overlaps import Overlaps
from phasecore.prior import WeightLaw, tilt
from phasecore.quadrature import sobol_normal

REFERENCE = Path(__file__).parent / "reference"
A2, A3 = ((0.6, 0.4), (0.3, 0.7)), 0.2 + 0.4 * np.eye(3)
UNEQUAL = Tokens((1.0, -1.0), [np.diag([0.15, 0.35])], [1.0])
TWO_ATOMS = Tokens((1.0, 0.0, -1.0), [0.125 * np.eye(3), 0.375 * np.eye(3)], [0.4, 0.6])
CORRELATED = Tokens((1.0, -0.5), [[[0.2, 0.1], [0.1, 0.3]], [[0.3, -0.1], [-0.1, 0.2]]], [0.3, 0.7])
PROBLEMS = {
    "paper": Problem.paper(),
    "two atoms, L=3": Problem(TWO_ATOMS, A3, 0.3, 0.01),
    "unequal covariances": Problem(UNEQUAL, A2, 0.3, 0.01),
    "correlated atoms": Problem(CORRELATED, A2, 0.2, 0.02, beta=1.5),
    "untied, two teachers": Problem(UNEQUAL, A2, 0.3, (0.01, 0.02), teacher_rank=2, tied=False),
    "rank two": Problem.paper(rank=2),
}


def generic_law(problem: Problem, seed: int = 0) -> WeightLaw:
    """A law without any symmetry, of the size of those at fixed points."""
    rng = np.random.default_rng(seed)
    K, R = len(problem.tokens.weights), problem.n_fields
    mixing = 0.4 * np.eye(R) + 0.1 * rng.normal(size=(K, R, R))
    return WeightLaw(
        position=rng.normal(0, 0.3, (K, problem.tokens.positions.shape[1], R)),
        teacher=rng.normal(0, 0.5, (K, R, problem.teacher_rank)),
        noise=mixing @ mixing.swapaxes(1, 2),
        response=20 * (np.eye(R) + mixing.swapaxes(1, 2) @ mixing),
    )


def slow_nodes(overlaps: Overlaps, h: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Normals (N, L(R+t)) from which the slow map builds these fields, by its own formulas."""
    size_h, size_w = len(h), len(w)
    q = overlaps.q.reshape(size_w, size_w)
    theta = overlaps.theta.reshape(size_w, size_h)
    rho = np.cov(h, bias=True)  # replaced below by the exact one
    raise NotImplementedError(q, theta, rho)
