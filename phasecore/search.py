"""The search for a fixed point in one symmetry sector: starts, root finding, lowest wells.

A cheap node set (the guide) locates the root from a rough start and supplies the Jacobian; the full
set then needs a handful of sweeps. During root finding every node stays in its well, so that the
map is smooth; between rounds all nodes move to their lowest well, until none does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import root as find_root

from phasecore.channel import Channel
from phasecore.prior import Tilt, WeightLaw, tilt
from phasecore.problem import Problem
from phasecore.quadrature import Rule, sobol_normal
from phasecore.sector import Sector, starting_law

COARSE = 2**9
SETTLE_ROUNDS = 4
MAX_POLISH = 15
MAX_CONTRACT = 16
ROUGH = 1e-3  # residual at which wells are first examined on the full node set
QUARTERS = 4
ASIDE = 0.6  # so far from the root that quarters which stay there exceed what is significant


class Search:
    """The fixed-point search for one problem, alpha and sector."""

    def __init__(self, problem: Problem, alpha: float, sector: Sector, tol: float) -> None:
        self.problem, self.alpha, self.sector, self.tol = problem, alpha, sector, tol
        self.dim = problem.length * (problem.teacher_rank + problem.n_fields)

    def guide(self, n: int, entropy: tuple[int, ...]) -> Channel:
        """The cheap node set: the first points of the full one."""
        return self.channel(min(n, COARSE), entropy)

    def channel(self, n: int, entropy: tuple[int, ...]) -> Channel:
        return Channel(self.problem, sobol_normal(self.dim, n, entropy))

    def sweep(self, channel: Channel, x: np.ndarray) -> tuple[WeightLaw, Tilt]:
        law = self.sector.unpack(x)
        hats = channel.conjugates(self.alpha, law.overlaps(self.problem))
        return law, tilt(self.problem, hats)

    def residual(self, channel: Channel, x: np.ndarray) -> np.ndarray:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                residual = self.sector.residual(*self.sweep(channel, x))
        except np.linalg.LinAlgError:  # a trial step so large that the overlaps overflow
            return np.full(len(x), 1e3)
        return np.nan_to_num(residual, nan=1e3, posinf=1e3, neginf=-1e3)

    def relax(self, channel: Channel, x: np.ndarray, sweeps: int = 15) -> np.ndarray:
        """Damped iteration from a rough start: cheap and crude, it only finds the basin."""
        for _ in range(sweeps):
            law, tilted = self.sweep(channel, x)
            stable = np.linalg.eigvalsh(tilted.precision)[:, 0].min() > 0
            new = tilted.law() if stable else tilted.law(2 * law.response)
            x = x + 0.25 * np.clip(self.sector.pack(new) - x, -1, 1)
        return x

    def jacobian(self, channel: Channel, x: np.ndarray) -> np.ndarray:
        """Forward differences on ``channel``, every node kept in its well: a jump has no slope."""
        channel.keep_wells()
        base, step = self.residual(channel, x), 1e-5
        columns = [self.residual(channel, x + step * e) - base for e in np.eye(len(x))]
        return np.stack(columns, axis=1) / step

    def polish(
        self,
        channel: Channel,
        x: np.ndarray,
        inverse: np.ndarray,
        tol: float,
        residual: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Broyden's method from a good guess with a good inverse Jacobian: one sweep a step.

        ``residual`` at x saves a sweep where it is known. Returns x, the inverse, the residual.
        """
        residual = self.residual(channel, x) if residual is None else residual
        for _ in range(MAX_POLISH):
            if np.abs(residual).max() <= tol:
                break
            step = -inverse @ residual
            step *= min(1.0, 0.3 / np.abs(step).max())
            x = x + step
            new = self.residual(channel, x)
            change = inverse @ (new - residual)
            scale = step @ change
            if abs(scale) > 1e-3 * (step @ step):
                inverse = inverse + np.outer(step - change, step @ inverse) / scale
            residual = new
        return x, inverse, residual

    def settle(self, channel: Channel, x: np.ndarray, follow: bool = True) -> np.ndarray:
        """Move nodes to their lowest wells; the residual at x there."""
        channel.settle(self.sector.unpack(x).overlaps(self.problem), follow)
        return self.residual(channel, x)

    def solves(self, residual: np.ndarray) -> bool:
        return bool(np.abs(residual).max() <= self.tol)

    def locate(self, channel: Channel, x: np.ndarray) -> np.ndarray:
        """Root on a cheap node set."""
        for _ in range(SETTLE_ROUNDS):
            if self.solves(self.settle(channel, x)):
                break
            before, x = x, self.hybrid(channel, x)
            if np.abs(x - before).max() < ROUGH:
                break  # a jump where the root should be: good enough for a guide
        return x

    def refine(self, channel: Channel, guide: Channel, x: np.ndarray) -> np.ndarray:
        """Root on the full node set, with the Jacobian of the cheap one.

        It counts only if it is one with every node at its lowest well, searched afresh: following
        wells is not enough, since one that vanishes drops its node into any other. Where jumps
        between wells make the map too rough for that (close to the end of a branch), nodes are
        kept in their wells while the smooth map is solved, and moved in between: slower, but it
        contracts. Either way the last thing done to the channel is to settle it at x.
        """
        # where no node of the guide has a second well, the first look for them can be the last
        enough = ROUGH if len(guide.contested) else 0.1 * self.tol
        inverse = np.linalg.pinv(self.jacobian(guide, x))
        x, inverse, _ = self.polish(channel, x, inverse, enough)
        for _ in range(SETTLE_ROUNDS):
            examined = x
            residual = self.settle(channel, x)
            if self.solves(residual):
                return x
            x, inverse, residual = self.polish(channel, x, inverse, 0.1 * self.tol, residual)
            if not self.solves(residual):
                break
        return self.contract(channel, examined, inverse)

    def contract(self, channel: Channel, x: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """Alternate a root at fixed wells with moving every node to its lowest well.

        Nodes that change well while x moves make the true map steeper than the smooth one, and
        the alternation then oscillates: it is damped when a step turns back.
        """
        share, last = 1.0, np.zeros_like(x)
        for _ in range(MAX_CONTRACT):
            residual = self.settle(channel, x, follow=False)
            if self.solves(residual):
                return x
            y, better, residual = self.polish(channel, x, inverse, 0.1 * self.tol, residual)
            if self.solves(residual):
                inverse = better
            else:
                y = self.hybrid(channel, x)
            if share < 1 and self.solves(self.settle(channel, y, follow=False)):
                return y
            if (y - x) @ last < 0:
                share /= 2
            last = y - x
            x = x + share * last
        self.settle(channel, x, follow=False)
        return x

    def hybrid(self, channel: Channel, x: np.ndarray) -> np.ndarray:
        """Powell's hybrid method with forward differences: robust, n + 1 sweeps to begin with."""
        options = {"xtol": 1e-10, "eps": 1e-10, "maxfev": 30 * (len(x) + 1), "factor": 0.1}
        return find_root(lambda y: self.residual(channel, y), x, options=options).x

    def starts(self, law: WeightLaw | None, guide: Channel) -> Iterator[np.ndarray]:
        """Coordinates to start from, cheapest first; later ones are tried if these fail."""
        if law is not None:
            yield self.sector.pack(law)
        rough = self.sector.pack(starting_law(self.problem, self.sector))
        yield self.relax(guide, rough)
        for factor in (3.0, 1 / 3):  # walk in from an alpha where the branch may be plainer
            path = self.alpha * factor ** np.linspace(1, 0, 9)
            steps = [Search(self.problem, float(alpha), self.sector, 1e-5) for alpha in path]
            x = steps[0].relax(guide, rough)
            for step in steps:
                x = step.locate(guide, x)
            yield x

    def resolution(self, rule: Rule, x: np.ndarray) -> float:
        """Quadrature error of the order parameter: spread of its roots on quarters of the nodes.

        The direct way, since close to the end of a branch errors are amplified and jumps of the
        proximal operator defeat a linear estimate. The quarters are entered from below and from
        above: where the map is so flat or so rough that a root can lie anywhere, they say so.
        """
        orders, rough = [], Search(self.problem, self.alpha, self.sector, 10 * ROUGH)
        factors = (ASIDE, 1 / ASIDE) * (QUARTERS // 2)
        for part, factor in zip(rule.split(QUARTERS), factors, strict=True):
            channel, y = Channel(self.problem, part), x.copy()
            y[self.sector.order_entries] *= factor
            y = rough.locate(channel, y)
            if not rough.solves(rough.residual(channel, y)):
                y = rough.contract(channel, y, np.linalg.pinv(rough.jacobian(channel, y)))
            orders.append(y[self.sector.order_entries])
        spread = np.std(orders, axis=0, ddof=1) / np.sqrt(QUARTERS)
        return float(np.linalg.norm(spread))
