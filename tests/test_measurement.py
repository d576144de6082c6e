"""Overlaps of finite-size weights, their signs, the basin names, and the starts."""

from __future__ import annotations

import numpy as np
import pytest

from phasecore import Problem, Tokens
from phasecore.measurement import MeasuredOverlaps, starting_weights
from phasecore.sampling import Draw

TWO_LEVELS = Tokens((1.0, -1.0), [np.eye(2) * 0.1, np.eye(2) * 0.4], [0.5, 0.5])
THREE = Tokens.isotropic(3, 0.5, positions=(1.0, 0.0, -1.0))
A3 = ((0.5, 0.3, 0.2), (0.3, 0.4, 0.3), (0.2, 0.3, 0.5))


def random_weights(draw: Draw, seed: int = 0) -> np.ndarray:
    """Weights with every overlap present."""
    noise = np.random.default_rng(seed).standard_normal((draw.d, draw.problem.n_fields))
    along = np.sqrt(draw.d) * draw.directions[0][:, None] + draw.teacher[:, :1]
    return 0.4 * noise + along * np.arange(1.0, 1 + noise.shape[1])


def test_overlaps_against_their_formulas_on_an_anisotropic_spectrum():
    draw = Draw(Problem(TWO_LEVELS, ((0.6, 0.4), (0.4, 0.6)), 0.3, 0.01), 1.0, 90, 0)
    w = random_weights(draw)
    q_vector, gamma = w[:, 0], np.where(draw.atoms == 0, 0.1, 0.4)
    record = MeasuredOverlaps.of(w, draw).record()
    m = q_vector.sum() / 90  # p_1 = 1/sqrt(d), so m_1 = sum_i Q_i / d
    theta = (gamma * q_vector * draw.teacher[:, 0]).sum() / 90
    assert record["m"] == pytest.approx(abs(m))
    assert record["theta"] == pytest.approx(abs(theta))
    assert record["q"] == pytest.approx((gamma * q_vector**2).sum() / 90)
    # The sign convention: the dominant overlap is positive, the other keeps its relative sign.
    assert abs(record["m_signed"]) == record["m"]
    assert abs(record["theta_signed"]) == pytest.approx(record["theta"])
    assert np.sign(record["m_signed"] * record["theta_signed"]) == np.sign(m * theta)


@pytest.mark.parametrize("along", ["p", "teacher"])
def test_signed_values_ignore_the_sign_of_the_weights_but_not_that_of_the_pinned_overlap(along):
    draw = Draw(Problem.paper(), 1.0, 400, 0)
    position = np.sqrt(draw.d) * draw.directions[0][:, None]
    main, other = (position, draw.teacher) if along == "p" else (draw.teacher, position)
    main = main - other * (main * other).sum() / (other**2).sum()
    dominant, pinned = ("m", "theta") if along == "p" else ("theta", "m")
    seen = {}
    for leak in (0.1, -0.1):
        for sign in (1, -1):
            record = MeasuredOverlaps.of(sign * (main + leak * other), draw).record()
            assert record[f"{dominant}_signed"] == pytest.approx(record[dominant])
            seen[leak, sign] = record[f"{pinned}_signed"]
    assert seen[0.1, 1] == pytest.approx(seen[0.1, -1]) == pytest.approx(-seen[-0.1, 1])
    assert seen[0.1, 1] > 0


@pytest.mark.parametrize("tied", [True, False])
def test_record_is_invariant_under_the_symmetries_of_the_weights(tied):
    problem = Problem(THREE, A3, 0.3, 0.01, rank=2, tied=tied, teacher_rank=2)
    draw = Draw(problem, 1.0, 200, 0)
    w = random_weights(draw)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((2, 2)))[0]
    rotation = rotation if tied else np.kron(np.eye(2), rotation)
    before = MeasuredOverlaps.of(w, draw)
    after = MeasuredOverlaps.of(w @ rotation, draw)
    assert after.record() == pytest.approx(before.record())
    assert after.basin == before.basin


def test_basin_names():
    draw = Draw(Problem.paper(), 1.0, 1000, 0)
    position = np.sqrt(draw.d) * draw.directions[0][:, None]
    noise = np.random.default_rng(0).standard_normal((draw.d, 1))

    def basin(m, theta, rest):
        return MeasuredOverlaps.of(m * position + theta * draw.teacher + rest * noise, draw).basin

    assert basin(0.25, 0.0, 0.3) == "positional"
    assert basin(0.25, 0.05, 0.3) == "positional"
    assert basin(0.0, 0.6, 0.3) == "semantic"
    assert basin(0.05, 0.6, 0.3) == "semantic"
    assert basin(0.16, 0.6, 0.3) == "semantic"
    assert basin(0.25, 0.6, 0.3) == "mixed"
    assert basin(0.0, 0.0, 0.5) == "agnostic"
    assert basin(0.0, 0.0, 0.0) == "agnostic"


def test_starts_on_the_paper_problem():
    draw = Draw(Problem.paper(sigma=0.5), 1.0, 300, 0)
    positional = starting_weights(draw, "positional")
    assert np.allclose(positional[:, 0], 0.25 * np.sqrt(300) * draw.encodings[0])
    assert np.allclose(starting_weights(draw, "semantic", 0.7), 0.7 * draw.teacher)
    random = starting_weights(draw, "random", 2.0)
    assert random.std() == pytest.approx(2.0, rel=0.2)
    assert np.array_equal(random, starting_weights(draw, "random", 2.0))


def test_starts_with_more_columns_break_the_symmetries():
    draw = Draw(Problem.paper(rank=2), 1.0, 300, 0)
    w = starting_weights(draw, "semantic", 1.0)
    assert np.allclose(w[:, 0], draw.teacher[:, 0])
    assert w[:, 1].std() == pytest.approx(0.05, rel=0.2)
    problem = Problem(Tokens.isotropic(), ((0.6, 0.4), (0.4, 0.6)), 0.3, 0.01, tied=False)
    w = starting_weights(Draw(problem, 1.0, 300, 0), "positional", 1.0)
    assert 0 < np.linalg.norm(w[:, 1] - w[:, 0]) < 0.1 * np.linalg.norm(w[:, 0])


def test_untied_positional_start_attends_the_way_the_target_does():
    """A that favours the other token needs scores of the other sign, so K starts at -Q."""
    problem = Problem.paper(A=((0.3, 0.7), (0.8, 0.2)), tied=False)
    w = starting_weights(Draw(problem, 1.0, 300, 0), "positional", 1.0)
    assert w[:, 0] @ w[:, 1] < 0


def test_positional_start_follows_the_direction_on_which_the_encodings_differ():
    positions = [(1.0, 1.0), (1.0, 0.0), (1.0, -1.0)]
    draw = Draw(Problem(Tokens.isotropic(3, 0.5, positions=positions), A3, 0.3, 0.01), 1.0, 300, 0)
    w = starting_weights(draw, "positional", 1.0)
    assert np.allclose(np.abs(w[:, 0]), np.abs(np.sqrt(300) * draw.directions[1]))
    equal = Tokens.isotropic(2, 0.5, positions=(1.0, 1.0))
    draw = Draw(Problem(equal, ((0.6, 0.4), (0.4, 0.6)), 0.3, 0.01), 1.0, 300, 0)
    assert np.allclose(starting_weights(draw, "positional", 1.0), 1.0)
