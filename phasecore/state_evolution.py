"""Fixed points of the state evolution, by root finding on frozen quadrature nodes.

One sweep maps a weight law to overlaps, to local fields, through the proximal operator to
conjugate overlaps, and back to a law. The plain iteration is unstable on the positional branch, so
the fixed point is found as a root. Frozen nodes make the sweep a deterministic function that can be
solved to 1e-8; the error of the result is its spread over scrambles of the nodes, never the
residual.

Source: paper (arXiv 2402.03902), state evolution; general form in the book's replica appendix.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from phasecore.channel import Channel
from phasecore.checks import choice, integer, number
from phasecore.observables import test_mse, train_loss
from phasecore.overlaps import ConjugateOverlaps, Overlaps
from phasecore.prior import WeightLaw, tilt
from phasecore.problem import Problem
from phasecore.search import Search
from phasecore.sector import BRANCHES, Sector, starting_law
from phasecore.solution import ConvergenceError, Solution, Status

SIGNIFICANT = 6  # standard errors (each from four values) that an order parameter must exceed
LOST = 0.1  # residual that no jump of a node explains: there is no fixed point nearby
DOUBTFUL = 0.2  # share of the mean in the weights below which it is compared with its error


def state_evolution(
    problem: Problem,
    alpha: float,
    branch: str,
    *,
    n_nodes: int = 2**13,
    seed: int = 0,
    scrambles: int = 1,
    start: Solution | None = None,
    tol: float = 1e-8,
    throw: bool = True,
    progress: bool | None = None,
) -> Solution:
    """Solve the state evolution of ``problem`` at sample ratio alpha = n/d on one branch.

    Parameters
    ----------
    branch : "positional" (theta = 0), "semantic" (m = 0) or "mixed" (nothing pinned)
    n_nodes : scrambled Sobol nodes, rounded up to a power of two
    seed, scrambles : scramble s uses the stream (seed, s); with scrambles > 1 the result is the
        mean and ``record()`` carries standard errors
    start : a Solution on the same branch nearby, to start from instead of from cold
    tol : bound on the residual of one sweep, relative to each order parameter
    throw : raise on failure; otherwise the status of the returned Solution tells
    progress : show a bar over scrambles; None shows it on a terminal

    Raises
    ------
    ConvergenceError
        When the status is not "converged"; it carries ``.solution``.
    ValueError, TypeError
        On bad arguments, naming the argument, before any work.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem: {type(problem).__name__}, expected phasecore.Problem")
    alpha = number("alpha", alpha, above=0.0)
    choice("branch", branch, BRANCHES)
    n_nodes = 2 ** math.ceil(math.log2(integer("n_nodes", n_nodes, minimum=512)))
    seed = integer("seed", seed, minimum=0)
    scrambles = integer("scrambles", scrambles, minimum=1)
    tol = number("tol", tol, above=0.0)
    if start is not None and not isinstance(start, Solution):
        raise TypeError(f"start: {type(start).__name__}, expected a Solution")
    search = Search(problem, alpha, Sector.of(problem, branch), tol)
    if start is not None:
        _check_start(start, branch, starting_law(problem, search.sector))
    law = None if start is None else start.law
    runs: list[Solution] = []
    hidden = True if scrambles == 1 or progress is False else (None if progress is None else False)
    for s in tqdm(range(scrambles), desc=f"{branch} alpha={alpha:g}", disable=hidden, leave=False):
        run = _solve(search, branch, law, n_nodes, seed, s)
        runs.append(run)
        if law is None and run.converged:
            law = run.law
    solution = runs[0] if scrambles == 1 else _mean(runs)
    if throw and not solution.converged:
        raise ConvergenceError(solution)
    return solution


def _check_start(start: Solution, branch: str, expected: WeightLaw) -> None:
    if start.branch != branch:
        raise ValueError(f"start: a solution on the {start.branch} branch, expected {branch}")
    for part in fields(expected):
        shape, wanted = (np.shape(getattr(law, part.name)) for law in (start.law, expected))
        if shape != wanted:
            raise ValueError(
                f"start: {part.name} of shape {shape}, expected {wanted}: it belongs to a problem "
                "with other ranks, tokens or spectrum"
            )


def _solve(
    search: Search, branch: str, law: WeightLaw | None, n: int, seed: int, scramble: int
) -> Solution:
    """Try the starts in turn; the first that gives a converged solution wins."""
    entropy = (seed, scramble)
    guide = search.guide(n, entropy)
    failures: list[Solution] = []
    strongest = 0.0
    try:
        for start in search.starts(law, guide):
            x = search.locate(guide, start)
            alignment = search.sector.alignment(search.sector.unpack(x))
            if failures and alignment < 1.5 * strongest:
                continue  # the same root again, or one closer to the agnostic point
            strongest = max(strongest, alignment)
            fine = search.channel(n, entropy)
            solution = _report(search, branch, fine, guide, search.refine(fine, guide, x), seed)
            if solution.converged:
                return solution
            failures.append(solution)
    except np.linalg.LinAlgError:  # the overlaps grow without bound, as for lam = 0 at small alpha
        failures.append(_nowhere(search, branch, n, seed))
    return min(failures, key=lambda s: (s.status is not Status.BELOW_RESOLUTION, s.residual))


def _nowhere(search: Search, branch: str, n: int, seed: int) -> Solution:
    """No number can be stated: NaN everywhere, at the law that the search began with."""
    law = starting_law(search.problem, search.sector)
    overlaps = law.overlaps(search.problem)
    shapes = (overlaps.m, overlaps.q, overlaps.V, overlaps.theta)
    nothing = [np.full(x.shape, math.nan) for x in shapes]
    return Solution(
        problem=search.problem,
        alpha=search.alpha,
        branch=branch,
        status=Status.NOT_FOUND,
        overlaps=Overlaps(*nothing),
        conjugates=ConjugateOverlaps(*nothing),
        law=law,
        train_loss=math.nan,
        test_mse=math.nan,
        residual=math.inf,
        resolution=math.nan,
        n_nodes=n,
        seed=seed,
        sweeps=0,
    )


def _report(
    search: Search, branch: str, channel: Channel, guide: Channel, x: np.ndarray, seed: int
) -> Solution:
    """Everything that is stated about the point x, with every node at its lowest well."""
    problem, alpha = search.problem, search.alpha
    law = search.sector.unpack(x)
    overlaps = law.overlaps(problem)
    hats = channel.conjugates(alpha, overlaps)
    residual = float(np.abs(search.sector.residual(law, tilt(problem, hats))).max())
    at_prox, at_fresh = channel.mean_losses(overlaps)
    resolution = math.nan
    status = Status.CONVERGED if residual <= search.tol else Status.NOT_CONVERGED
    if not residual <= LOST:
        status = Status.NOT_FOUND
    if search.sector.alignment(law) < DOUBTFUL:
        resolution = search.resolution(channel.rule, x)
        order = np.linalg.norm(x[search.sector.order_entries])
        if order < SIGNIFICANT * resolution:
            status = Status.BELOW_RESOLUTION if residual <= search.tol else Status.NOT_FOUND
    return Solution(
        problem=problem,
        alpha=alpha,
        branch=branch,
        status=status,
        overlaps=overlaps,
        conjugates=hats,
        law=law,
        train_loss=train_loss(alpha, at_prox, law.ridge_cost(problem)),
        test_mse=test_mse(at_fresh, problem.length),
        residual=residual,
        resolution=resolution,
        n_nodes=len(channel.rule.weights),
        seed=seed,
        sweeps=channel.sweeps,
    )


def _mean(runs: list[Solution]) -> Solution:
    """Mean over scrambles; the status is that of the first scramble that failed, if any did."""
    failed = [run for run in runs if not run.converged]
    average: dict[str, Any] = {}
    for name in ("overlaps", "conjugates", "law"):
        parts = [getattr(run, name) for run in runs]
        entries = {
            f.name: np.mean([getattr(p, f.name) for p in parts], 0) for f in fields(parts[0])
        }
        average[name] = type(parts[0])(**entries)
    for name in ("train_loss", "test_mse"):
        average[name] = float(np.mean([getattr(run, name) for run in runs]))
    return replace(
        runs[0],
        **average,
        status=(failed or runs)[0].status,
        residual=max(run.residual for run in runs),
        resolution=max(run.resolution for run in runs),
        sweeps=sum(run.sweeps for run in runs),
        runs=tuple(runs),
    )
