"""Batched empirical-risk minimisation at finite dimension: one student per seed.

Reported as in the theory: ``train_loss = min R / d`` and ``test_mse = E|y - f|^2 / (d L)``, with
the risk R of ``phasecore.risk``. Imports torch; ``import phasecore`` does not import this module.
Source of the experiment: Cui, Behrens, Krzakala, Zdeborova, arXiv 2402.03902, section 3.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from phasecore import optimisers
from phasecore.checks import choice, integer, number
from phasecore.measurement import MeasuredOverlaps, starting_weights
from phasecore.problem import Problem
from phasecore.risk import (
    DTYPES,
    EmpiricalRisk,
    estimate_test_mse,
    one_thread,
    resolve_device,
    to_host,
)
from phasecore.sampling import Draw

Results = dict[int, tuple[dict[str, Any], np.ndarray]]  # row and weights of each seed
INITS = ("positional", "semantic", "random")
# Largest number of steps and step length of each optimiser, unless the caller says otherwise.
STEPS = {"lbfgs": 5000, "gd": 5000, "adam": 2500}
RATES = {"gd": 0.15, "adam": 0.01}


@dataclass(frozen=True)
class _Settings:
    """What the members of a call share."""

    init: str
    scale: float | None
    optimizer: str
    optimise: Callable[[np.ndarray], optimisers.Run]
    device: torch.device
    dtype: str
    n_test: int


@dataclass
class _Member:
    """One run in progress: the point it waits for, and the time it has used."""

    risk: EmpiricalRisk
    run: optimisers.Run
    point: np.ndarray
    seconds: float = 0.0


def train(
    problem: Problem,
    alpha: float,
    d: int,
    seeds: Iterable[int],
    init: str = "positional",
    *,
    optimizer: str = "lbfgs",
    device: str | None = None,
    dtype: str = "float64",
    scale: float | None = None,
    learning_rate: float | None = None,
    tol: float = 1e-7,
    max_steps: int | None = None,
    n_test: int = 4096,
    batch_gb: float = 4.0,
    return_weights: bool = False,
    progress: bool | None = None,
) -> pd.DataFrame | tuple[pd.DataFrame, np.ndarray]:
    """Train one student per seed on its own data, and measure where it ended.

    Parameters
    ----------
    problem, alpha, d : the model, its sample ratio n/d and the dimension of a token.
    seeds : different integers >= 0, one draw of data each. A seed gives the same numbers alone
        or in a batch: nothing a member computes depends on the others.
    init : "positional", "semantic" or "random"; see ``measurement.starting_weights``.
    optimizer : "lbfgs", "gd" (full batch) or "adam" (full batch).
    device : "cpu", "cuda", "cuda:<index>", or None for CUDA when there is one.
    dtype : "float64" or "float32". In float32 the default tol is below the rounding of the
        gradient, and runs end "stopped by the line search".
    scale : size of the start, None for the one of ``starting_weights``.
    learning_rate : of "gd" (default 0.15) or "adam" (default 0.01).
    tol : a run has converged when ``grad_norm = |grad_W R|_2 / sqrt(d) <= tol``.
    max_steps : default 5000 (lbfgs, gd) or 2500 (adam).
    n_test : number of fresh sentences behind test_mse.
    batch_gb : data held at once, in GB; at least one member is held. A batch that runs out of
        memory is split in halves.
    return_weights : also return the weights, (len(seeds), d, R).
    progress : None shows a bar on a terminal once a call lasts 2 seconds, False never does.

    Returns
    -------
    DataFrame with one row per seed and the columns of ``Solution.record`` (V and residual are
    NaN; branch is the basin the run ended in), then m_signed, theta_signed (see
    ``MeasuredOverlaps.record``), seed, d, n, init, grad_norm, steps, seconds (share of the
    optimisation, without the data), optimizer. status is "converged", "stopped at the step
    limit", "stopped by the line search" or "diverged"; a run that ended in another basin than
    that of its start says "left the positional branch" or "left the semantic branch".

    Raises
    ------
    TypeError, ValueError naming the argument and the value, before any work.
    """
    members = _seeds(seeds)
    choice("init", init, INITS)
    choice("optimizer", optimizer, tuple(STEPS))
    choice("dtype", dtype, tuple(DTYPES))
    if scale is not None:
        scale = number("scale", scale, above=0.0)
    if learning_rate is not None:
        if optimizer not in RATES:
            raise ValueError(f"learning_rate: {learning_rate!r}, lbfgs has none")
        learning_rate = number("learning_rate", learning_rate, above=0.0)
    tol = number("tol", tol, above=0.0)
    max_steps = STEPS[optimizer] if max_steps is None else max_steps
    max_steps = integer("max_steps", max_steps, minimum=1)
    n_test = integer("n_test", n_test, minimum=1)
    batch_gb = number("batch_gb", batch_gb, above=0.0)
    for name, flag in (("return_weights", return_weights), ("progress", progress)):
        if not isinstance(flag, bool | None) or (flag is None and name != "progress"):
            raise TypeError(f"{name}: {flag!r}, expected True or False")
    place = resolve_device(device)
    draws = [Draw(problem, alpha, d, seed) for seed in members]

    bound = tol * np.sqrt(d)
    if optimizer == "lbfgs":
        noise = 100 * float(torch.finfo(DTYPES[dtype]).eps)
        optimise = partial(optimisers.lbfgs, tol=bound, max_steps=max_steps, noise=noise)
    else:
        method = optimisers.gradient_descent if optimizer == "gd" else optimisers.adam
        rate = RATES[optimizer] if learning_rate is None else learning_rate
        optimise = partial(method, tol=bound, max_steps=max_steps, rate=rate)
    settings = _Settings(init, scale, optimizer, optimise, place, dtype, n_test)

    done: Results = {}
    disable = None if progress is None else not progress
    # miniters=0: a slow run shows its evaluations although no member has finished yet.
    with tqdm(
        total=len(draws), desc="train", unit="seed", delay=2, miniters=0, disable=disable
    ) as bar:
        size = max(1, int(batch_gb * 1e9 / _member_bytes(draws[0], dtype)))
        for start in range(0, len(draws), size):
            _halve_on_memory(draws[start : start + size], settings, done, bar)
    table = pd.DataFrame([done[seed][0] for seed in members])
    if return_weights:
        return table, np.stack([done[seed][1] for seed in members])
    return table


def _halve_on_memory(draws: list[Draw], settings: _Settings, done: Results, bar: tqdm) -> None:
    try:
        return _train_batch(draws, settings, done, bar)
    except (MemoryError, RuntimeError) as error:
        if len(draws) == 1 or not _is_out_of_memory(error):
            raise
    # Outside the handler: the failed batch is only freed once its traceback is gone.
    half = len(draws) // 2
    _halve_on_memory(draws[:half], settings, done, bar)
    _halve_on_memory(draws[half:], settings, done, bar)


def _train_batch(draws: list[Draw], settings: _Settings, done: Results, bar: tqdm) -> None:
    """Advance all members together; each is answered with its own numbers and leaves when done."""
    members: dict[int, _Member] = {}
    for draw in draws:
        risk = EmpiricalRisk(draw, str(settings.device), settings.dtype)
        run = settings.optimise(starting_weights(draw, settings.init, settings.scale))
        members[draw.seed] = _Member(risk, run, next(run))
    for evaluations in itertools.count(1):
        began = time.perf_counter()
        with one_thread():
            replies = {seed: member.risk.evaluate(member.point) for seed, member in members.items()}
        outcomes = {}
        for seed, reply in replies.items():
            member = members[seed]
            try:
                member.point = member.run.send(to_host(reply, member.point.shape))
            except StopIteration as stop:
                outcomes[seed] = stop.value
        share = (time.perf_counter() - began) / len(members)
        for member in members.values():
            member.seconds += share
        for seed, outcome in outcomes.items():
            member = members.pop(seed)
            row = _row(member.risk.draw, outcome, member.seconds, settings)
            done[seed] = row, outcome.point
        bar.set_postfix_str(f"{len(members)} running, evaluation {evaluations}", refresh=False)
        bar.update(len(done) - bar.n)
        if not members:
            return


def _row(
    draw: Draw, outcome: optimisers.Outcome, seconds: float, settings: _Settings
) -> dict[str, Any]:
    overlaps = MeasuredOverlaps.of(outcome.point, draw)
    record, basin, status = overlaps.record(), overlaps.basin, outcome.status
    if settings.init != "random" and basin != settings.init and status != optimisers.DIVERGED:
        left = f"left the {settings.init} branch"
        status = left if status == optimisers.CONVERGED else f"{left}; {status}"
    return {
        "alpha": float(draw.alpha),
        "branch": basin,
        "m": record["m"],
        "theta": record["theta"],
        "q": record["q"],
        "V": np.nan,
        "train_loss": outcome.value / draw.d,
        "test_mse": estimate_test_mse(draw, outcome.point, settings.n_test, str(settings.device)),
        "residual": np.nan,
        "status": status,
        "m_signed": record["m_signed"],
        "theta_signed": record["theta_signed"],
        "seed": draw.seed,
        "d": draw.d,
        "n": draw.n,
        "init": settings.init,
        "grad_norm": optimisers.norm(outcome.gradient) / np.sqrt(draw.d),
        "steps": outcome.steps,
        "seconds": seconds,
        "optimizer": settings.optimizer,
    }


def _member_bytes(draw: Draw, dtype: str) -> int:
    L = draw.problem.length
    return draw.n * L * (draw.d + 3 * L) * DTYPES[dtype].itemsize


def _seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise TypeError(f"seeds: {seeds!r}, expected a sequence of integers")
    checked = [integer("seeds", seed, minimum=0) for seed in seeds]
    if not checked or len(set(checked)) != len(checked):
        raise ValueError(f"seeds: {checked}, expected at least one, all different")
    return checked


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU allocator raises a plain RuntimeError; only its text tells.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "memory" in str(error).lower()
