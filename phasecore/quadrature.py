"""Nodes and weights for expectations over independent standard normals.

Two rules, each where it is better: scrambled Sobol for integrands with jumps (anything behind the
proximal operator), whose spread over scrambles is the error bar; Gauss-Hermite for smooth ones.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

# scipy 1.15 renamed the keyword that seeds the scramble
_SEED = "rng" if "rng" in inspect.signature(qmc.Sobol).parameters else "seed"


@dataclass(frozen=True, eq=False)
class Rule:
    """``E f(x) ~ sum_n weights[n] f(points[:, n])`` for x ~ N(0, I); points are (dim, N)."""

    points: np.ndarray
    weights: np.ndarray

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Expectation over the last axis of ``values``."""
        return values @ self.weights

    def split(self, parts: int) -> list[Rule]:
        """Equal-weight rules on consecutive parts of the points."""
        pieces = np.split(self.points, parts, axis=1)
        return [_frozen(p, np.full(p.shape[1], 1 / p.shape[1])) for p in pieces]


@lru_cache(maxsize=8)
def sobol_normal(dim: int, n: int, entropy: tuple[int, ...]) -> Rule:
    """Scrambled Sobol points mapped to normals; ``entropy`` names the scramble. n is a power of 2.

    Different entropies give independent scrambles, each an unbiased rule.
    """
    rng = np.random.default_rng(np.random.SeedSequence(entropy))
    options: dict[str, Any] = {_SEED: rng}
    sampler = qmc.Sobol(dim, scramble=True, **options)
    uniform = sampler.random(n).T
    # 64-bit scrambling can return exactly 0, which the normal quantile sends to -infinity
    points = ndtri(np.clip(uniform, 2.0**-54, 1 - 2.0**-53))
    return _frozen(points, np.full(n, 1 / n))


@lru_cache(maxsize=8)
def gauss_hermite(dim: int, order: int) -> Rule:
    """Tensor product of the ``order``-point Gauss-Hermite rule, order**dim points."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    points = np.stack([axis.ravel() for axis in np.meshgrid(*[x] * dim, indexing="ij")])
    weights = np.prod([a.ravel() for a in np.meshgrid(*[w] * dim, indexing="ij")], axis=0)
    return _frozen(points, weights / weights.sum())


def _frozen(points: np.ndarray, weights: np.ndarray) -> Rule:
    points = np.ascontiguousarray(points)
    points.setflags(write=False)
    weights.setflags(write=False)
    return Rule(points, weights)
