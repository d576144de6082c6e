"""Minimisers of one run, written as coroutines: they ask for a point, and are sent its value.

``point = next(run)`` starts a run; ``run.send((value, gradient))`` answers and returns the next
point; ``StopIteration.value`` is the ``Outcome``. A driver can therefore evaluate many runs in one
batch while the decisions of each run depend on its own numbers only: a run in a batch takes the
same steps as alone, and a finished run asks for nothing more. NumPy float64, one array per point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

Reply = tuple[float, np.ndarray]
Run = Generator[np.ndarray, Reply, "Outcome"]

CONVERGED = "converged"
STEP_LIMIT = "stopped at the step limit"
STALLED = "stopped by the line search"
DIVERGED = "diverged"


@dataclass(frozen=True)
class Outcome:
    """Where a run ended: its point, the value and gradient there, and why it stopped."""

    point: np.ndarray
    value: float
    gradient: np.ndarray
    steps: int
    status: str


def drive(run: Run, value_and_gradient: Callable[[np.ndarray], Reply]) -> Outcome:
    """Answer one run until it ends."""
    point = next(run)
    while True:
        try:
            point = run.send(value_and_gradient(point))
        except StopIteration as stop:
            return stop.value


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """Scalar product. NumPy's own summation: BLAS dot depends on threads in its last bits."""
    return float((a * b).sum())


def norm(a: np.ndarray) -> float:
    """Euclidean norm."""
    return float(np.sqrt(inner(a, a)))


def gradient_descent(start: np.ndarray, tol: float, max_steps: int, rate: float) -> Run:
    """``x <- x - rate g`` until ``|g| <= tol``."""
    return _first_order(start, tol, max_steps, lambda gradient, step: rate * gradient)


def adam(start: np.ndarray, tol: float, max_steps: int, rate: float) -> Run:
    """Adam with decay rates .9 and .999 (Kingma and Ba, arXiv 1412.6980), until ``|g| <= tol``."""
    mean, square = np.zeros_like(start), np.zeros_like(start)

    def move(gradient: np.ndarray, step: int) -> np.ndarray:
        mean[...] = 0.9 * mean + 0.1 * gradient
        square[...] = 0.999 * square + 0.001 * gradient**2
        return rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)

    return _first_order(start, tol, max_steps, move)


def _first_order(
    start: np.ndarray,
    tol: float,
    max_steps: int,
    move: Callable[[np.ndarray, int], np.ndarray],
) -> Run:
    x = start
    value, gradient = yield x
    for step in range(1, max_steps + 1):
        if norm(gradient) <= tol:
            return Outcome(x, value, gradient, step - 1, CONVERGED)
        trial = x - move(gradient, step)
        answer = yield trial
        if not np.isfinite(answer[0]):
            return Outcome(x, value, gradient, step, DIVERGED)
        x, (value, gradient) = trial, answer
    status = CONVERGED if norm(gradient) <= tol else STEP_LIMIT
    return Outcome(x, value, gradient, max_steps, status)


def lbfgs(
    start: np.ndarray,
    tol: float,
    max_steps: int,
    *,
    memory: int = 20,
    reach: float = 0.3,
    noise: float = 100 * np.finfo(np.float64).eps,
) -> Run:
    """Limited-memory BFGS with a weak Wolfe line search (Nocedal and Wright, algorithm 7.4).

    Parameters
    ----------
    start : array of any shape
    tol : stop when ``|g|_2 <= tol``.
    max_steps : accepted steps.
    memory : number of pairs kept.
    reach : a first trial moves at most ``reach * |x|``: on a loss with several basins, a run must
        not be thrown out of the one it starts in by a step length of one.
    noise : relative rounding error of a value; smaller differences are not trusted.
    """
    x = start
    value, gradient = yield x
    pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=memory)
    for step in range(max_steps):
        if norm(gradient) <= tol:
            return Outcome(x, value, gradient, step, CONVERGED)
        direction = -_inverse_hessian(pairs, gradient)
        if inner(direction, gradient) >= 0:
            pairs.clear()
            direction = -gradient
        first = min(1.0, reach * max(norm(x), tol) / norm(direction))
        found = yield from _weak_wolfe(x, value, gradient, direction, first, noise)
        if found is None and pairs:
            # A stale history is the usual cause: try once more along the plain gradient.
            pairs.clear()
            direction = -gradient
            first = min(1.0, reach * max(norm(x), tol) / norm(direction))
            found = yield from _weak_wolfe(x, value, gradient, direction, first, noise)
        if found is None:
            return Outcome(x, value, gradient, step, STALLED)
        moved, new_value, new_gradient = found
        s, y = moved - x, new_gradient - gradient
        if inner(s, y) > 0:
            pairs.append((s, y, inner(s, y)))
        x, value, gradient = moved, new_value, new_gradient
    status = CONVERGED if norm(gradient) <= tol else STEP_LIMIT
    return Outcome(x, value, gradient, max_steps, status)


def _inverse_hessian(
    pairs: deque[tuple[np.ndarray, np.ndarray, float]], gradient: np.ndarray
) -> np.ndarray:
    """Two-loop recursion: the quasi-Newton inverse Hessian times the gradient."""
    out = gradient.copy()
    weights = []
    for s, y, sy in reversed(pairs):
        weight = inner(s, out) / sy
        out -= weight * y
        weights.append(weight)
    if pairs:
        _, y, sy = pairs[-1]
        out *= sy / inner(y, y)
    for (s, y, sy), weight in zip(pairs, reversed(weights), strict=True):
        out += (weight - inner(y, out) / sy) * s
    return out


def _weak_wolfe(
    x: np.ndarray,
    value: float,
    gradient: np.ndarray,
    direction: np.ndarray,
    first: float,
    noise: float,
    *,
    decrease: float = 1e-4,
    curvature: float = 0.9,
    trials: int = 30,
) -> Generator[np.ndarray, Reply, tuple[np.ndarray, float, np.ndarray] | None]:
    """Bracketing search for a step t with enough decrease and slope; None if there is none.

    Accepts ``f(t) <= f(0) + decrease t f'(0)``, or, where values differ by rounding only, the
    equivalent statement on slopes ``f'(t) <= (2 decrease - 1) f'(0)`` (Hager and Zhang 2005);
    and ``f'(t) >= curvature f'(0)``.
    """
    slope = inner(gradient, direction)
    rounding = noise * abs(value)
    low, high = (0.0, value, slope), None
    t = first
    for _ in range(trials):
        moved = x + t * direction
        new_value, new_gradient = yield moved
        new_slope = inner(new_gradient, direction) if np.isfinite(new_value) else np.inf
        sufficient = new_value <= value + decrease * t * slope or (
            new_value <= value + rounding and new_slope <= (2 * decrease - 1) * slope
        )
        if sufficient and new_slope >= curvature * slope:
            return moved, new_value, new_gradient
        if sufficient:
            low = (t, new_value, new_slope)
        else:
            high = (t, new_value, new_slope)
        t = 3 * t if high is None else _cubic_minimum(low, high)
    return None


def _cubic_minimum(low: tuple[float, float, float], high: tuple[float, float, float]) -> float:
    """Minimiser of the cubic through two (step, value, slope), kept inside the bracket."""
    (a, fa, ga), (b, fb, gb) = low, high
    width = b - a
    if not np.isfinite([fb, gb]).all():
        return a + 0.1 * width
    shift = ga + gb - 3 * (fb - fa) / width
    root = shift**2 - ga * gb
    t = 0.5 * (a + b)
    if root >= 0 and gb - ga + 2 * np.sqrt(root) != 0:
        t = b - width * (gb + np.sqrt(root) - shift) / (gb - ga + 2 * np.sqrt(root))
    return min(max(t, a + 0.1 * width), b - 0.1 * width)
