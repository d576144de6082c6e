"""Fixed points: identities that hold only there, symmetries, limits, and what is said on failure.

Comparisons between different node sets are made over scrambles and judged in standard errors of
their paired difference; where the node set is the same, to the tolerance of the root.
"""

from __future__ import annotations

import numpy as np
import pytest

from phasecore import ConvergenceError, Problem, Solution, Status, Tokens, state_evolution
from phasecore.attention import Activation, Softmax
from phasecore.channel import Channel
from phasecore.prior import tilt
from phasecore.quadrature import sobol_normal
from phasecore.sector import Sector

A2, A3 = ((0.6, 0.4), (0.3, 0.7)), 0.2 + 0.4 * np.eye(3)
UNEQUAL = Tokens((1.0, -1.0), [np.diag([0.2, 0.3])], [1.0])
TWO_ATOMS = Tokens((1.0, -1.0), [0.125 * np.eye(2), 0.375 * np.eye(2)], [0.5, 0.5])
THREE = Tokens.isotropic(3, positions=(1.0, 0.0, -1.0))


class Sigmoid(Activation):
    """Every score by itself, rows need not sum to one: a user's own activation."""

    name = "sigmoid"

    def value(self, scores, xp=np):
        return 0.5 + 0.5 * xp.tanh(scores / 2)

    def derivatives(self, scores, u):
        S = self.value(scores)
        eye = np.eye(len(S))[None, :, :, None]
        slope = S * (1 - S)
        return eye * slope[:, :, None], eye * (u * slope * (1 - 2 * S))[:, :, None]


class PlainSoftmax(Softmax):
    """Softmax through the general formula instead of its closed form."""

    bend = Activation.bend


CASES = {
    "positional": (Problem.paper(), 2.0, "positional"),
    "semantic": (Problem.paper(), 1.25, "semantic"),
    "other A, unequal covariances": (Problem(UNEQUAL, A2, 0.3, 0.01), 1.5, "semantic"),
    "unequal covariances": (Problem(UNEQUAL, A2, 0.4, 0.02), 1.5, "positional"),
    "two atoms": (Problem(TWO_ATOMS, A2, 0.3, 0.01), 1.5, "semantic"),
    "three tokens": (Problem(THREE, A3, 0.3, 0.01), 1.5, "semantic"),
    "sigmoid attention": (
        Problem(UNEQUAL, A2, 0.3, 0.01, attention=Sigmoid()),
        1.5,
        "positional",
    ),
}
by_case = pytest.mark.parametrize("case", CASES)


def channel_of(run: Solution) -> Channel:
    """The node set of a run with one scramble, every node at its lowest well."""
    problem = run.problem
    dim = problem.length * (problem.teacher_rank + problem.n_fields)
    channel = Channel(problem, sobol_normal(dim, run.n_nodes, (run.seed, 0)))
    channel.settle(run.overlaps)
    return channel


@by_case
def test_training_loss_is_minus_the_free_entropy(case):
    """Stein's lemma on frozen nodes is an identity, so the two forms agree to the tolerance."""
    problem, alpha, branch = CASES[case]
    run = state_evolution(problem, alpha, branch, n_nodes=2**11)
    o, hats = run.overlaps, run.conjugates
    felt = tilt(problem, hats)
    law = run.law
    prior = (
        -0.5
        * problem.tokens.weights
        @ (
            np.einsum("aij,aji->a", felt.variance, law.response)
            + np.einsum("akr,akr->a", felt.field_position, law.position)
            + np.einsum("art,art->a", felt.field_teacher, law.teacher)
        )
    )
    pairs = (o.m * hats.m_hat).sum() + (o.theta * hats.theta_hat).sum()
    pairs += 0.5 * ((hats.q_hat * o.V).sum() - (hats.V_hat * o.q).sum())
    moreau = channel_of(run).mean_moreau(o)
    assert alpha * moreau + pairs + prior == pytest.approx(run.train_loss, rel=1e-7)


@by_case
def test_envelope_identities(case):
    """``d eps_t/d lam = |Q|^2/(2d)`` and ``d eps_t/d alpha = E M``, six scrambles each."""
    problem, alpha, branch = CASES[case]
    lam = float(problem.lam)  # type: ignore[arg-type]
    gaps = []
    for seed in range(6):

        def loss(lam: float, alpha: float, near: Solution | None = None, seed: int = seed):
            p = Problem(problem.tokens, problem.A, problem.omega, lam, attention=problem.attention)
            return state_evolution(p, alpha, branch, n_nodes=2**11, seed=seed, start=near)

        here = loss(lam, alpha)
        up, down = loss(1.05 * lam, alpha, here), loss(0.95 * lam, alpha, here)
        by_lam = (up.train_loss - down.train_loss) / (0.1 * lam)
        up, down = loss(lam, 1.05 * alpha, here), loss(lam, 0.95 * alpha, here)
        by_alpha = (up.train_loss - down.train_loss) / (0.1 * alpha)
        norm = here.law.ridge_cost(problem) / lam
        moreau = channel_of(here).mean_moreau(here.overlaps)
        gaps.append((by_lam / norm - 1, by_alpha / moreau - 1))
    gaps = np.array(gaps)
    curvature = 2e-3  # of central differences over 5%
    error = gaps.std(0, ddof=1) / np.sqrt(len(gaps))
    assert (np.abs(gaps.mean(0)) < 4.5 * error + curvature).all(), (gaps.mean(0), error)
    assert (np.abs(gaps.mean(0)) < 0.05).all()


SAME = {
    "positions with the other sign": lambda p: Problem(
        Tokens(-p.tokens.positions, p.tokens.covariances, p.tokens.weights), p.A, p.omega, p.lam
    ),
    "tokens exchanged": lambda p: Problem(
        Tokens(p.tokens.positions[::-1], p.tokens.covariances[:, ::-1, ::-1], p.tokens.weights),
        p.A[::-1, ::-1],
        p.omega,
        p.lam,
    ),
}


@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_symmetries_of_the_model(change, branch):
    """Independent scrambles of both problems; 6 quantities, 4.5 combined standard errors."""
    problem = Problem(UNEQUAL, A2, 0.35, 0.01)
    kwargs = dict(n_nodes=2**11, scrambles=8)
    one = state_evolution(problem, 1.5, branch, **kwargs)
    other = state_evolution(SAME[change](problem), 1.5, branch, seed=1, **kwargs)
    a, b = one.record(), other.record()
    for name, error in one.stderr().items():
        assert abs(a[name] - b[name]) <= 4.5 * np.hypot(error, other.stderr()[name]), name


@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_an_atom_split_in_two_changes_nothing(branch):
    p = Problem.paper()
    split = Tokens(p.tokens.positions, np.repeat(p.tokens.covariances, 2, 0), [0.4, 0.6])
    one = state_evolution(p, 1.5, branch, n_nodes=2**10).record()
    two = state_evolution(Problem(split, p.A, p.omega, p.lam), 1.5, branch, n_nodes=2**10).record()
    for name in ("m", "theta", "q", "V", "train_loss", "test_mse"):
        assert two[name] == pytest.approx(one[name], rel=1e-6), name


def test_general_and_closed_form_of_softmax_give_one_solution():
    p = Problem.paper()
    plain = Problem(p.tokens, p.A, p.omega, p.lam, attention=PlainSoftmax())
    for branch in ("positional", "semantic"):
        one = state_evolution(p, 1.5, branch, n_nodes=2**10)
        two = state_evolution(plain, 1.5, branch, n_nodes=2**10)
        assert two.train_loss == pytest.approx(one.train_loss, rel=1e-8)


def test_little_data_leaves_the_response_of_the_ridge_alone():
    """alpha -> 0: V -> sigma^2/lam, and the loss is below that of the untrained layer, and near."""
    p, deviations = Problem.paper(), []
    for alpha in (0.2, 0.02):
        solution = state_evolution(p, alpha, "positional", n_nodes=2**11, throw=False)
        channel = channel_of(solution)
        zero = np.zeros((2, 1, channel.T.shape[2]))
        untrained = channel.rule.mean(p.student.loss(zero, channel.T, p.tokens.rho))
        response = solution.record()["V"] / (0.25 / 0.01)
        deviations.append((response - 1, 1 - solution.train_loss / (alpha * untrained)))
    (_, gain), (small, less) = deviations
    assert abs(small) < 0.1
    assert 0 < less < gain < 1


@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_a_strong_ridge_leaves_no_branch(branch):
    solution = state_evolution(Problem.paper(lam=2.0), 1.5, branch, n_nodes=2**10, throw=False)
    assert solution.status in (Status.NOT_FOUND, Status.BELOW_RESOLUTION)


def test_the_branches_cross_where_two_independent_runs_found_it():
    """alpha_c(.3) = 1.251 +- .001 in numerics.md; here only that it lies in (1.22, 1.28)."""
    gap = []
    for alpha in (1.22, 1.28):
        one, two = (
            state_evolution(Problem.paper(), alpha, branch, scrambles=3).train_loss
            for branch in ("positional", "semantic")
        )
        gap.append(one - two)
    assert gap[0] < 0 < gap[1]


def test_rank_two_mixes_both():
    """numerics.md: .00337 at alpha = 3, to which trained losses extrapolate; both overlaps."""
    record = state_evolution(Problem.paper(rank=2), 3.0, "mixed", n_nodes=2**12).record()
    assert record["train_loss"] == pytest.approx(0.00337, rel=0.01)
    assert min(record["m"], record["theta"]) > 0.1


@pytest.mark.parametrize("branch", ["positional", "semantic"])
@pytest.mark.parametrize("omega", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("alpha", [0.5, 1.25, 2.5])
def test_a_cold_start_gives_the_branch_or_says_why_not(branch, omega, alpha):
    solution = state_evolution(
        Problem.paper(omega=omega), alpha, branch, n_nodes=2**11, throw=False
    )
    record = solution.record()
    own, pinned = ("m", "theta") if branch == "positional" else ("theta", "m")
    assert record[pinned] == 0.0
    if omega >= 0.3 and (alpha > 1 or branch == "positional"):
        assert solution.converged
    if solution.converged:
        assert solution.residual <= 1e-8
        assert record[own] / 0.25 > 0.03
    else:
        assert solution.status.value == record["status"] != "converged"


@pytest.mark.parametrize(("sigma", "correlation", "alpha"), [(0.62, 0.0, 1.0), (0.5, -0.2, 2.0)])
def test_the_agnostic_point_is_never_called_positional(sigma, correlation, alpha):
    problem = Problem.paper(sigma=sigma, correlation=correlation)
    for seed in range(2):
        solution = state_evolution(
            problem, alpha, "positional", n_nodes=2**12, seed=seed, throw=False
        )
        assert not solution.converged


@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_without_a_ridge_and_with_little_data_nothing_is_found(branch):
    """For lam = 0 and alpha < 1 the response is infinite: a status, not an error of a library."""
    solution = state_evolution(Problem.paper(lam=0), 0.05, branch, n_nodes=2**10, throw=False)
    assert solution.status is Status.NOT_FOUND
    with pytest.raises(ConvergenceError, match="branch not found"):
        state_evolution(Problem.paper(lam=0), 0.05, branch, n_nodes=2**10)


def test_a_failure_carries_the_solution_and_names_the_knob():
    with pytest.raises(ConvergenceError, match=r"start=|raise n_nodes") as caught:
        state_evolution(Problem.paper(lam=2.0), 1.5, "semantic", n_nodes=2**10)
    assert not caught.value.solution.converged
    assert str(caught.value.solution.alpha) in str(caught.value)


@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_a_warm_start_gives_the_cold_result(branch):
    p = Problem.paper()
    cold = state_evolution(p, 2.0, branch)
    warm = state_evolution(p, 2.0, branch, start=state_evolution(p, 1.9, branch))
    for name in ("train_loss", "test_mse", "q", "V"):
        assert warm.record()[name] == pytest.approx(cold.record()[name], rel=1e-6), name


def test_a_reported_point_is_one_for_a_reader_who_starts_afresh():
    """Wells remembered from elsewhere once made roots of their own (m/sigma^2 = .8 here)."""
    p = Problem.paper(omega=0.2)
    far = state_evolution(p, 1.6, "positional", n_nodes=2**12)
    for alpha in (2.5, 2.75):
        solution = state_evolution(p, alpha, "positional", n_nodes=2**12, start=far, throw=False)
        hats = channel_of(solution).conjugates(alpha, solution.overlaps)
        sector = Sector.of(p, "positional")
        residual = np.abs(sector.residual(solution.law, tilt(p, hats))).max()
        assert residual == pytest.approx(solution.residual, rel=1e-3, abs=1e-9)
        assert not solution.converged


def test_scrambles_give_mean_and_standard_error():
    p = Problem.paper()
    solution = state_evolution(p, 1.5, "positional", n_nodes=2**10, scrambles=4, seed=7)
    alone = state_evolution(p, 1.5, "positional", n_nodes=2**10, seed=7)
    assert solution.runs[0].train_loss == pytest.approx(alone.train_loss, rel=1e-9)
    losses = [run.train_loss for run in solution.runs]
    record = solution.record()
    assert len(set(losses)) == 4
    assert record["train_loss"] == pytest.approx(np.mean(losses))
    assert record["train_loss_stderr"] == pytest.approx(np.std(losses, ddof=1) / 2)
    assert record["theta_stderr"] == 0
    assert alone.stderr() == {}


def test_the_stated_error_is_the_error():
    """Means of 8 scrambles at 2^10 against 2^14: 4.5 combined standard errors, 5 quantities."""
    p = Problem.paper()
    small = state_evolution(p, 2.0, "positional", n_nodes=2**10, scrambles=8)
    large = state_evolution(p, 2.0, "positional", n_nodes=2**14, scrambles=4, seed=5)
    for name in ("m", "q", "V", "train_loss", "test_mse"):
        error, better = small.stderr()[name], large.stderr()[name]
        assert better < error, name
        gap = small.record()[name] - large.record()[name]
        assert abs(gap) < 4.5 * np.hypot(error, better), name


def test_bars_only_where_they_are_wanted(capsys):
    kwargs = dict(n_nodes=2**10, scrambles=2)
    state_evolution(Problem.paper(), 1.5, "semantic", progress=True, **kwargs)
    assert "semantic" in capsys.readouterr().err
    for quiet in (False, None):
        state_evolution(Problem.paper(), 1.5, "semantic", progress=quiet, **kwargs)
        assert capsys.readouterr().err == ""
