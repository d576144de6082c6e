"""Lower minima of the empirical risk than a single descent finds, on the same branch.

Where the proximal operator of the theory jumps, the risk has many local minima of nearly the same
depth: a descent from the start of a branch stops in the first of them. The theory describes the
lowest. :func:`anneal` goes on from where ``phasecore.training.train`` stopped, with Langevin steps

    W <- W - eta grad R(W) + (2 eta T)^{1/2} noise,   T from ``TEMPERATURE`` linearly down to 0,

``eta`` the inverse of the largest curvature there, and descends again (L-BFGS, same tolerance; only
the Langevin steps are in float32). The lower of the two states that are on the branch is kept: the
choice is made by the risk alone.

How the constants were set, on "unequal" at d = 500. Positional, alpha = 2: 3e-5, 1e-4, 3e-4, 1e-3
(2000 steps; hardly a run moved), then 2e-3, 4e-3, 8e-3, 1.6e-2 (4000 steps; runs leave the
branch from 2e-3 on). Both branches, alpha = 1: 7e-4 and 1.5e-3 (3000 steps). Then 3000 steps in
float64 on two blocks; 2000 in float32 is what the time allowed. It has not converged in the
number of steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from tqdm import tqdm

from phasecore import optimisers
from phasecore.measurement import MeasuredOverlaps
from phasecore.problem import Problem
from phasecore.risk import EmpiricalRisk, estimate_test_mse
from phasecore.sampling import Draw
from phasecore.training import train

TEMPERATURE = 1.5e-3  # of the risk R, a sum over samples; higher ones leave the branch
STEPS = 2000
TOL = 1e-7
ANNEAL = 4  # child stream of a draw; phasecore.sampling uses 0 to 3


def anneal(problem: Problem, alpha: float, d: int, seeds: Iterable[int], init: str) -> pd.DataFrame:
    """The table of ``train`` after annealing those runs that stayed on the branch.

    Two more columns: ``gain``, the fall of train_loss (0 where the descent's state is kept), and
    ``annealed``, the basin in which annealing ended.
    """
    table, weights = train(
        problem, alpha, d, seeds, init, device="cpu", batch_gb=1.0, return_weights=True
    )
    rows = []
    for row, start in zip(table.to_dict("records"), tqdm(weights, "annealing"), strict=True):
        row |= {"gain": 0.0, "annealed": row["branch"]}
        if row["branch"] == init:
            draw = Draw(problem, alpha, d, row["seed"])
            outcome = lower_minimum(draw, start)
            overlaps, loss = MeasuredOverlaps.of(outcome.point, draw), outcome.value / d
            row["annealed"] = overlaps.basin
            if overlaps.basin == init and loss < row["train_loss"]:
                row |= overlaps.record() | {
                    "gain": row["train_loss"] - loss,
                    "train_loss": loss,
                    "test_mse": estimate_test_mse(draw, outcome.point, 4096, "cpu"),
                    "status": outcome.status,
                    "grad_norm": optimisers.norm(outcome.gradient) / np.sqrt(d),
                }
        rows.append(row)
    return pd.DataFrame(rows)


def lower_minimum(draw: Draw, start: np.ndarray) -> optimisers.Outcome:
    """Langevin annealing from a minimum, then L-BFGS."""
    rng, x, rough = draw.generator(ANNEAL), start, EmpiricalRisk(draw, "cpu", "float32")
    eta = 1 / largest_curvature(rough, start, rng)
    for temperature in np.linspace(TEMPERATURE, 0, STEPS):
        noise = rng.standard_normal(x.shape)
        x = x - eta * rough.value_and_gradient(x)[1] + np.sqrt(2 * eta * temperature) * noise
    risk = EmpiricalRisk(draw, "cpu")
    run = optimisers.lbfgs(x, tol=TOL * np.sqrt(draw.d), max_steps=5000)
    return optimisers.drive(run, risk.value_and_gradient)


def largest_curvature(risk: EmpiricalRisk, x: np.ndarray, rng: np.random.Generator) -> float:
    """Largest eigenvalue of the Hessian at x, by power iteration on differences of gradients."""
    base, direction = risk.value_and_gradient(x)[1], rng.standard_normal(x.shape)
    size = 1.0
    for _ in range(15):
        direction /= np.linalg.norm(direction)
        direction = (risk.value_and_gradient(x + 0.1 * direction)[1] - base) / 0.1
        size = float(np.linalg.norm(direction))
    return size
