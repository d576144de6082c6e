"""Batched proximal operator and Moreau envelope of the attention loss.

    M(w, T) = min_z E(z),   E(z) = (1/2) (z-w)^T V^{-1} (z-w) + loss(z, T)

The loss is not convex: E can have several wells, and the minimiser jumps between them as w moves.
:func:`descend` follows one well (warm start); :func:`lowest_well` starts in several and keeps the
lowest. Arrays put the nodes last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phasecore.attention import Attention

MAX_STEPS = 100
CHUNK = 2**13  # nodes per block: bounds memory, yet calls stay few
STEP_TOL = 2e-5  # the last Newton step; the error left behind is its square
MERGE = 0.05  # distance, in units of the typical field, below which two minimisers are one
WELL_TOL = 1e-10  # energy gain, relative to the mean energy, that counts as another well


@dataclass(frozen=True, eq=False)
class Moreau:
    """The energy E(z) at N nodes: w (LR, N), targets T (L, L, N), precision V^{-1} (LR, LR)."""

    attention: Attention
    rho: np.ndarray
    precision: np.ndarray
    w: np.ndarray
    T: np.ndarray

    def take(self, nodes: np.ndarray | slice) -> Moreau:
        w, T = self.w[:, nodes], self.T[:, :, nodes]
        return Moreau(self.attention, self.rho, self.precision, w, T)

    def _fields(self, z: np.ndarray) -> np.ndarray:
        return z.reshape(len(self.rho), -1, z.shape[-1])

    def energy(self, z: np.ndarray) -> np.ndarray:
        """E(z), (LR, N) -> (N,)."""
        shift = z - self.w
        loss = self.attention.loss(self._fields(z), self.T, self.rho)
        return loss + 0.5 * (shift * (self.precision @ shift)).sum(0)

    def derivatives(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """E (N,), its gradient (LR, N) and Hessian (LR, LR, N)."""
        shift = z - self.w
        force = self.precision @ shift
        loss, grad, hess = self.attention.derivatives(self._fields(z), self.T, self.rho)
        energy = loss + 0.5 * (shift * force).sum(0)
        return energy, grad + force, hess + self.precision[:, :, None]


def descend(
    moreau: Moreau, start: np.ndarray, known: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise E from ``start`` (LR, N), staying in its well; returns z and E(z).

    Newton with modified pivots and backtracking. A node leaves the batch once its step is small;
    with ``known`` minimisers, also once it comes so near them that it must be in the same well
    (its energy is then infinite: nothing new was found).
    """
    z = start.copy()
    energy = np.empty(z.shape[1])
    near = MERGE * np.sqrt((moreau.w**2).sum() / max(moreau.w.size, 1))
    for lo in range(0, z.shape[1], CHUNK):
        block = slice(lo, lo + CHUNK)
        old = None if known is None else known[:, block]
        z[:, block], energy[block] = _descend_block(moreau.take(block), z[:, block], old, near)
    return z, energy


def _descend_block(
    moreau: Moreau, z: np.ndarray, known: np.ndarray | None, near: float
) -> tuple[np.ndarray, np.ndarray]:
    floor = 1e-3 * np.diag(moreau.precision)
    active = np.arange(z.shape[1])
    result_z, result_energy = z.copy(), np.full(z.shape[1], np.inf)
    best, best_energy, step, trial = z, np.full(z.shape[1], np.inf), np.zeros_like(z), z
    for _ in range(MAX_STEPS):
        energy, grad, hess = moreau.derivatives(trial)
        better = energy <= best_energy + 1e-14 * np.abs(energy)
        newton = -_solve_modified(hess, grad, floor)
        if better.all():
            best, best_energy, step = trial, energy, newton
        else:
            best = np.where(better, trial, best)
            best_energy = np.where(better, energy, best_energy)
            step = np.where(better, newton, 0.5 * step)
        trial = best + step
        running = np.abs(step).max(0) > STEP_TOL
        if known is not None:
            merged = np.abs(trial - known).max(0) < near
            best_energy = np.where(merged, np.inf, best_energy)
            running &= ~merged
        if running.all():
            continue
        done = active[~running]
        result_z[:, done], result_energy[done] = trial[:, ~running], best_energy[~running]
        if not running.any():
            return result_z, result_energy
        active, moreau = active[running], moreau.take(running)
        best, best_energy = best[:, running], best_energy[running]
        step, trial = step[:, running], trial[:, running]
        known = None if known is None else known[:, running]
    result_z[:, active], result_energy[active] = best, best_energy
    return result_z, result_energy


def _solve_modified(hess: np.ndarray, grad: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Solve H x = g at every node by LDL^T with pivots replaced by max(|pivot|, floor).

    Exact where H is positive definite; elsewhere -x is still a direction of descent.
    Overwrites ``hess``.
    """
    n = len(grad)
    x = grad.copy()
    pivots = []
    for j in range(n):
        pivot = np.maximum(np.abs(hess[j, j]), floor[j])
        pivots.append(pivot)
        for i in range(j + 1, n):
            ratio = hess[i, j] / pivot
            x[i] -= ratio * x[j]
            for k in range(j + 1, i + 1):
                hess[i, k] -= ratio * hess[k, j]
    for j in reversed(range(n)):
        x[j] /= pivots[j]
        for i in range(j + 1, n):
            x[j] -= hess[i, j] / pivots[j] * x[i]
    return x


def starting_points(w: np.ndarray, z: np.ndarray, length: int) -> list[np.ndarray]:
    """Where to look for other wells than that of z: w, 0, -z, and w with one token flipped."""
    starts = [w, 1e-3 * w, -z]
    tokens = w.reshape(length, -1, w.shape[1])
    for token in range(length):
        flipped = tokens.copy()
        flipped[token] *= -1
        starts.append(flipped.reshape(w.shape))
    return starts


def lowest_well(
    moreau: Moreau, length: int, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Global minimiser over all starting points and the wells of ``z`` (LR, N).

    Returns z at the global minima, the nodes at which E has another well, and its bottom there.
    A start s is tried only where it can matter: every point nearer to s than to w (in the metric
    V^{-1}) has E at least (1/8) (s-w)^T V^{-1} (s-w), so nodes already below half of that are
    skipped (half, because a descent from s may end nearer to w).
    """
    z, energy = descend(moreau, z)
    rival, rival_energy = z.copy(), np.full(len(energy), np.inf)
    for start in starting_points(moreau.w, z, length):
        shift = start - moreau.w
        bound = 0.06 * (shift * (moreau.precision @ shift)).sum(0)
        nodes = np.flatnonzero(bound <= energy)
        found, found_energy = descend(moreau.take(nodes), start[:, nodes], known=z[:, nodes])
        closer = found_energy < rival_energy[nodes]
        rival[:, nodes[closer]] = found[:, closer]
        rival_energy[nodes[closer]] = found_energy[closer]
        _swap_lower(z, energy, rival, rival_energy, slice(None))
    contested = np.flatnonzero(np.isfinite(rival_energy))
    return z, contested, rival[:, contested]


def follow_wells(
    moreau: Moreau, z: np.ndarray, nodes: np.ndarray, rival: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower of the two wells followed from ``z`` (LR, N) and, at ``nodes``, from ``rival``.

    Returns z, E(z) and the bottoms of the higher wells.
    """
    z, energy = descend(moreau, z)
    rival, rival_energy = descend(moreau.take(nodes), rival)
    _swap_lower(z, energy, rival, rival_energy, nodes)
    return z, energy, rival


def _swap_lower(
    z: np.ndarray, energy: np.ndarray, rival: np.ndarray, rival_energy: np.ndarray, nodes
) -> None:
    """Exchange z and its rival, in place, at those ``nodes`` where the rival is lower."""
    lower = rival_energy < energy[nodes] - WELL_TOL * energy.mean()
    at = np.flatnonzero(lower) if isinstance(nodes, slice) else nodes[lower]
    z[:, at], rival[:, lower] = rival[:, lower], z[:, at]
    energy[at], rival_energy[lower] = rival_energy[lower], energy[at]
