"""The minimisers on functions whose minimum is known."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from phasecore.optimisers import Outcome, _inverse_hessian, adam, gradient_descent, lbfgs, norm


def drive(run, function) -> tuple[Outcome, int]:
    """Answer a run until it ends; also count its evaluations."""
    point, count = next(run), 0
    while True:
        count += 1
        try:
            point = run.send(function(point))
        except StopIteration as stop:
            return stop.value, count


def rosenbrock(x):
    a, b = 1 - x[:-1], x[1:] - x[:-1] ** 2
    gradient = np.zeros_like(x)
    gradient[:-1] = -2 * a - 400 * b * x[:-1]
    gradient[1:] += 200 * b
    return float((a**2 + 100 * b**2).sum()), gradient


def quadratic(curvatures):
    return lambda x: (float((curvatures * x**2).sum() / 2), curvatures * x)


def test_lbfgs_finds_the_minimum_of_a_curved_valley():
    outcome, count = drive(lbfgs(np.full(20, -1.0), 1e-9, 1000), rosenbrock)
    assert outcome.status == "converged"
    assert norm(outcome.gradient) <= 1e-9
    assert np.abs(outcome.point - 1).max() < 1e-8
    assert count < 1.5 * outcome.steps + 20


def test_lbfgs_costs_no_more_than_that_of_scipy():
    function = quadratic(np.logspace(-1, 2, 40))
    start = np.random.default_rng(0).standard_normal(40)
    outcome, count = drive(lbfgs(start, 1e-8, 2000), function)
    options = {"maxcor": 20, "gtol": 1e-8 / np.sqrt(40), "ftol": 0.0, "maxiter": 2000}
    reference = minimize(function, start, jac=True, method="L-BFGS-B", options=options)
    assert outcome.status == "converged"
    assert count < 1.3 * reference.nfev


def test_quasi_newton_matrix_is_that_of_the_bfgs_recursion():
    """H <- (1 - s y^T/sy) H (1 - y s^T/sy) + s s^T/sy from the scaled identity, as matrices."""
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((4, 6))
    changes = steps * np.linspace(1, 3, 6) + 0.1 * rng.standard_normal((4, 6))
    pairs = deque((s, y, s @ y) for s, y in zip(steps, changes, strict=True))
    assert all(sy > 0 for _, _, sy in pairs)
    s, y, sy = pairs[-1]
    dense = np.eye(6) * sy / (y @ y)
    for s, y, sy in pairs:
        left = np.eye(6) - np.outer(s, y) / sy
        dense = left @ dense @ left.T + np.outer(s, s) / sy
    gradient = rng.standard_normal(6)
    assert np.allclose(_inverse_hessian(pairs, gradient), dense @ gradient, rtol=1e-12)


def test_lbfgs_steps_never_raise_the_value_beyond_rounding():
    accepted = [drive(lbfgs(np.full(4, -1.5), 1e-12, k), rosenbrock)[0].value for k in range(1, 30)]
    assert (np.diff(accepted) <= 0).all()


def test_lbfgs_first_trial_of_a_step_respects_the_reach():
    trials = []

    def recorded(x):
        trials.append(x.copy())
        return quadratic(np.full(3, 1e-4))(x)

    drive(lbfgs(np.ones(3), 1e-9, 1, reach=0.3), recorded)
    assert norm(trials[1] - trials[0]) <= 0.3 * norm(trials[0]) * (1 + 1e-12)


def test_lbfgs_stops_honestly_where_the_slope_lies():
    outcome, count = drive(lbfgs(np.ones(3), 1e-9, 100), lambda x: (float((x**2).sum()), -2 * x))
    assert outcome.status == "stopped by the line search"
    assert count < 100


def test_lbfgs_survives_infinite_values_beyond_a_wall():
    def walled(x):
        inside = 1 - x
        if (inside <= 0).any():
            return np.inf, np.full_like(x, np.nan)
        return float((-np.log(inside) - 3 * np.log(x + 1)).sum()), 1 / inside - 3 / (x + 1)

    outcome, _ = drive(lbfgs(np.full(3, -0.9), 1e-10, 200, reach=10.0), walled)
    assert outcome.status == "converged"
    assert np.allclose(outcome.point, 0.5)


def test_gradient_descent_follows_its_closed_form():
    curvatures = np.array([0.1, 1.0, 2.0])
    outcome, _ = drive(gradient_descent(np.ones(3), 1e-30, 25, 0.3), quadratic(curvatures))
    assert outcome.status == "stopped at the step limit"
    assert outcome.steps == 25
    assert np.allclose(outcome.point, (1 - 0.3 * curvatures) ** 25, rtol=1e-12)


def test_gradient_descent_that_diverges_says_so_and_returns_finite_numbers():
    curvatures = np.array([1.0, 1e3])
    with np.errstate(over="ignore"):
        outcome, _ = drive(gradient_descent(np.ones(2), 1e-9, 5000, 1.0), quadratic(curvatures))
    assert outcome.status == "diverged"
    assert np.isfinite(outcome.value)


def test_adam_takes_the_steps_of_torch():
    curvatures = np.array([0.1, 1.0, 20.0])
    outcome, _ = drive(adam(np.ones(3), 1e-30, 60, 0.01), quadratic(curvatures))
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adam([x], lr=0.01)
    for _ in range(60):
        reference.zero_grad()
        (torch.tensor(curvatures) * x**2).sum().div(2).backward()
        reference.step()
    assert np.allclose(outcome.point, x.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("method", [gradient_descent, adam])
def test_first_order_methods_stop_at_the_tolerance(method):
    outcome, _ = drive(method(np.ones(3), 1e-3, 10_000, 0.05), quadratic(np.ones(3)))
    assert outcome.status == "converged"
    assert norm(outcome.gradient) <= 1e-3
    assert outcome.steps < 10_000


def test_a_start_at_the_minimum_takes_no_step():
    for run in (
        lbfgs(np.zeros(3), 1e-9, 10),
        gradient_descent(np.zeros(3), 1e-9, 10, 0.1),
        adam(np.zeros(3), 1e-9, 10, 0.1),
    ):
        outcome, count = drive(run, quadratic(np.ones(3)))
        assert (outcome.status, outcome.steps, count) == ("converged", 0, 1)
