"""The scheme of the published solver, rebuilt from its description: the yardstick of speed.

Two tokens, r = t = 1, covariance sigma^2 I, p_1 = -p_2; hats are summed over the two tokens:

    D = lam + sigma^2 V_hat    q = sigma^2 (sigma^2 q_hat + m_hat^2 + sigma^4 theta_hat^2) / D^2
    V = sigma^2 / D            m = m_hat / D            theta = sigma^4 theta_hat / D
    w_{1,2} = sqrt(q) xi_{1,2} +- m
    h_l = theta xi_l / sqrt(q) + sqrt(sigma^2 - theta^2/q) eta_l
    M = min_z sum_l (z_l - w_l)^2 / (2V) + sigma^2 sum_l (S_ll(z) - T_ll)^2,   g = (z* - w) / V

Deliberately kept: nested 12 x 12 cubature of degree 7 (outer xi, inner eta), one BFGS with
numerical gradient from (0, 0) per node, repeated for each of the four hats, V_hat in Stein form,
damping that keeps 80% of the old overlaps, tolerance 1e-4 on the relative change of
(q, m, theta, V) in one sweep.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from phasecore.problem import Problem


class Point(NamedTuple):
    """Overlaps of the reduced form."""

    q: float
    m: float
    theta: float
    V: float


# Close to each branch: from (q, m, V) = (.5, .5, 1) the damped iteration leaves the positional one.
STARTS = {"positional": Point(0.06, 0.25, 0.0, 10.0), "semantic": Point(0.15, 0.0, 0.16, 10.0)}


class Result(NamedTuple):
    """What the published scheme reaches; both times are of the iteration, without the loss."""

    point: Point
    train_loss: float
    sweeps: int
    wall_seconds: float
    cpu_seconds: float
    converged: bool


def cubature_plane() -> tuple[np.ndarray, np.ndarray]:
    """Stroud's E2r2 7-1 for two standard normals: 12 nodes, exact to total degree 7.

    For the weight exp(-x^2-y^2)/pi: (+-r, 0), (0, +-r) with r^2 = 3, weight 1/36, and
    (+-s, +-s) with s^2 = (9 -+ 3 sqrt 5)/8, weight (5 +- 2 sqrt 5)/45; nodes scaled by sqrt 2.
    """
    root5 = np.sqrt(5.0)
    signs = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
    axes = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)])
    nodes = [
        np.sqrt(3.0) * axes,
        np.sqrt((9 - 3 * root5) / 8) * signs,
        np.sqrt((9 + 3 * root5) / 8) * signs,
    ]
    weights = np.repeat([1 / 36, (5 + 2 * root5) / 45, (5 - 2 * root5) / 45], 4)
    return np.sqrt(2.0) * np.concatenate(nodes), weights


def attention(z: np.ndarray) -> np.ndarray:
    """(S_11, S_22) of the softmax of z z^T."""
    return expit(z * (z - z[::-1]))


class PublishedMap:
    """One sweep: overlaps to hats by nested cubature, hats to overlaps in closed form."""

    def __init__(self, problem: Problem, alpha: float) -> None:
        self.alpha, self.lam, self.omega = alpha, float(problem.lam), problem.omega
        self.variance = float(problem.tokens.covariances[0, 0, 0])
        self.A = np.diag(problem.A)
        self.nodes, self.weights = cubature_plane()

    def expectation(self, point: Point, integrand: Callable[..., float]) -> float:
        """E integrand(xi, eta, w, z*, T), one minimisation per node."""
        q, m, theta, V = point
        mean = np.array([m, -m])
        spread = np.sqrt(self.variance - theta**2 / q)
        total = 0.0
        for xi, weight_xi in zip(self.nodes, self.weights, strict=True):
            w = np.sqrt(q) * xi + mean
            inner = 0.0
            for eta, weight_eta in zip(self.nodes, self.weights, strict=True):
                h = theta / np.sqrt(q) * xi + spread * eta
                T = (1 - self.omega) * attention(h) + self.omega * self.A
                z = minimize(self.energy, np.zeros(2), args=(w, T, V), method="BFGS").x
                inner += weight_eta * integrand(xi, eta, w, z, T)
            total += weight_xi * inner
        return total

    def energy(self, z: np.ndarray, w: np.ndarray, T: np.ndarray, V: float) -> float:
        """Moreau objective at z."""
        quadratic = np.sum((z - w) ** 2) / (2 * V)
        return float(quadratic + self.variance * np.sum((attention(z) - T) ** 2))

    def hats(self, point: Point) -> tuple[float, float, float, float]:
        """(q_hat, m_hat, theta_hat, V_hat), an integral each:

        q_hat = alpha E sum g^2,               m_hat = alpha E (g_1 - g_2),
        theta_hat = alpha E sum g eta / spread,
        V_hat = -alpha E sum g xi / sqrt(q) + theta_hat theta / q.
        """
        q, _, theta, V = point
        spread = np.sqrt(self.variance - theta**2 / q)

        def mean(integrand: Callable[..., float]) -> float:
            return self.alpha * self.expectation(point, integrand)

        q_hat = mean(lambda xi, eta, w, z, T: np.sum((z - w) ** 2) / V**2)
        m_hat = mean(lambda xi, eta, w, z, T: ((z - w)[0] - (z - w)[1]) / V)
        theta_hat = mean(lambda xi, eta, w, z, T: (z - w) @ eta / (V * spread))
        slope = mean(lambda xi, eta, w, z, T: (z - w) @ xi / (V * np.sqrt(q)))
        return q_hat, m_hat, theta_hat, theta_hat * theta / q - slope

    def overlaps(self, hats: tuple[float, float, float, float]) -> Point:
        """Closed-form prior map."""
        q_hat, m_hat, theta_hat, V_hat = hats
        s = self.variance
        D = self.lam + s * V_hat
        second = s * q_hat + m_hat**2 + s**2 * theta_hat**2
        values = s * second / D**2, m_hat / D, s**2 * theta_hat / D, s / D
        return Point(*(float(v) for v in values))

    def train_loss(self, point: Point) -> float:
        """eps_t = alpha E[loss] + lam q / (2 sigma^2)."""
        loss = self.expectation(point, lambda xi, eta, w, z, T: np.sum((attention(z) - T) ** 2))
        return float(self.alpha * self.variance * loss + self.lam * point.q / (2 * self.variance))


def solve(
    problem: Problem, alpha: float, branch: str, *, tol: float = 1e-4, max_sweeps: int = 200
) -> Result:
    """Damped iteration from the start of the branch; like its model, it returns what it reached."""
    step = PublishedMap(problem, alpha)
    began, began_cpu = time.perf_counter(), time.process_time()
    point, change, sweep = STARTS[branch], np.inf, 0
    while change > tol and sweep < max_sweeps:
        new = step.overlaps(step.hats(point))
        mixed = Point(*(0.8 * a + 0.2 * b for a, b in zip(point, new, strict=True)))
        change = float(np.linalg.norm(np.subtract(mixed, point)) / np.linalg.norm(point))
        point, sweep = mixed, sweep + 1
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return Result(point, step.train_loss(point), sweep, wall, cpu, change <= tol)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Time the published scheme.")
    parser.add_argument("--alpha", type=float, default=2.0)
    parser.add_argument("--omega", type=float, default=0.3)
    arguments = parser.parse_args()
    for name in STARTS:
        print(name, solve(Problem.paper(omega=arguments.omega), arguments.alpha, name), flush=True)
