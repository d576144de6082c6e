"""Finite-size data against the law that the problem states."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from phasecore import Problem, Tokens, sampling
from phasecore.sampling import Draw, flat_directions, interleave, sample_count, triangular_root

A2 = ((0.6, 0.4), (0.4, 0.6))
A3 = ((0.5, 0.3, 0.2), (0.3, 0.4, 0.3), (0.2, 0.3, 0.5))


def spectrum_problem() -> Problem:
    """Three tokens, correlated and anisotropic: one atom is singular, two directions."""
    rng = np.random.default_rng(3)
    atoms = np.stack([half @ half.T for half in rng.normal(0, 0.4, (3, 3, 3))])
    atoms[1] = np.outer([0.5, 0.3, -0.2], [0.5, 0.3, -0.2])
    positions = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.5)]
    return Problem(Tokens(positions, atoms, [0.5, 0.2, 0.3]), A3, 0.3, 0.01, teacher_rank=2)


def sentences(draw: Draw) -> np.ndarray:
    return np.concatenate([x.copy() for x in draw.train_chunks()])


def test_empirical_covariance_is_the_atom_of_each_coordinate():
    draw = Draw(spectrum_problem(), 40.0, 100, 0)
    x = sentences(draw)
    assert x.shape == (draw.n, 3, 100)
    for atom, gamma in enumerate(draw.problem.tokens.covariances):
        values = x[:, :, draw.atoms == atom].transpose(1, 0, 2).reshape(3, -1)
        count = values.shape[1]
        diagonal = np.diag(gamma)
        spread = np.sqrt((np.outer(diagonal, diagonal) + gamma**2) / count)
        assert np.abs(values @ values.T / count - gamma).max() < 5 * spread.max()
        assert np.abs(values.mean(1)).max() < 5 * np.sqrt(diagonal.max() / count)
    # Different coordinates are independent: 4950 correlations of standard deviation 1/sqrt(n).
    correlation = np.corrcoef(x[:, 0].T) - np.eye(100)
    assert np.abs(correlation).max() < 6 / np.sqrt(draw.n)


def test_singular_atom_ties_its_tokens_exactly():
    draw = Draw(spectrum_problem(), 1.0, 100, 0)
    x = sentences(draw)[:, :, draw.atoms == 1]
    assert np.abs(x[:, 1] - 0.6 * x[:, 0]).max() < 1e-7
    assert x.std() > 0.1


def test_variances_are_those_of_the_tokens():
    draw = Draw(spectrum_problem(), 1.0, 1000, 0)
    assert draw.variances.shape == (3, 1000)
    assert np.allclose(draw.variances.mean(1), np.diag(draw.problem.tokens.rho), atol=2e-3)


@pytest.mark.parametrize("d", [64, 100, 501, 1000])
def test_encodings_have_the_gram_matrix_of_the_positions(d):
    draw = Draw(spectrum_problem(), 1.0, d, 0)
    positions = draw.problem.tokens.positions
    assert np.allclose(draw.encodings @ draw.encodings.T, positions @ positions.T, atol=1e-12)
    assert np.allclose(draw.directions[0], 1 / np.sqrt(d))
    assert np.abs(np.abs(draw.directions) * np.sqrt(d) - 1).max() < 8 / d
    for atom, weight in enumerate(draw.problem.tokens.weights):
        inside = draw.directions[:, draw.atoms == atom]
        assert np.abs(inside @ inside.T - weight * np.eye(2)).max() < 8 / d


def test_many_directions_are_orthonormal_and_spread_over_two_interleaved_atoms():
    atoms = interleave(np.array([0.5, 0.5]), 512)
    e = flat_directions(8, atoms)
    assert np.allclose(e @ e.T, np.eye(8), atol=1e-12)
    assert np.allclose(e[:, atoms == 0] @ e[:, atoms == 0].T, np.eye(8) / 2, atol=1e-12)


def test_interleaving_keeps_every_prefix_proportional():
    weights = np.array([0.15, 0.6, 0.25])
    atoms = interleave(weights, 400)
    shares = np.cumsum(atoms[:, None] == np.arange(3), axis=0)
    assert np.abs(shares - weights * np.arange(1, 401)[:, None]).max() <= 1


def test_root_of_a_singular_matrix():
    gamma = np.outer([1.0, -2.0, 0.5], [1.0, -2.0, 0.5])
    root = triangular_root(gamma)
    assert np.allclose(root @ root.T, gamma)
    assert np.allclose(np.triu(root, 1), 0)


def test_a_draw_does_not_depend_on_the_size_of_its_chunks(monkeypatch):
    draw = Draw(spectrum_problem(), 2.0, 100, 5)
    whole = sentences(draw)
    monkeypatch.setattr(sampling, "CHUNK", 7 * 300)
    assert max(len(x) for x in draw.train_chunks()) == 7
    assert np.array_equal(sentences(draw), whole)


def test_streams_differ_between_seeds_sample_ratios_dimensions_and_purposes():
    problem = Problem.paper()
    first = [
        sentences(Draw(problem, alpha, d, seed))[0, 0, 0]
        for alpha, d, seed in [(1.0, 50, 0), (1.0, 50, 1), (2.0, 50, 0), (2.0, 25, 0)]
    ]
    draw = Draw(problem, 1.0, 50, 0)
    first.append(next(draw.test_chunks(3))[0, 0, 0])
    first.append(0.5 * draw.teacher[0, 0])
    assert len(set(first)) == len(first)
    again = Draw(problem, 1.0, 50, 0)
    assert np.array_equal(sentences(again), sentences(draw))
    assert np.array_equal(again.teacher, draw.teacher)


def test_target_directions_are_standard_normal():
    teacher = Draw(spectrum_problem(), 1.0, 4000, 0).teacher
    assert teacher.shape == (4000, 2)
    assert np.abs(teacher.T @ teacher / 4000 - np.eye(2)).max() < 5 * np.sqrt(2 / 4000)


def test_the_frozen_first_numbers_of_a_seed():
    """Published tables name seeds: these numbers may only change with a new version of them."""
    x = next(Draw(Problem.paper(), 2.0, 10, 7).train_chunks())
    assert x[0, 0, :2] == pytest.approx((-0.01798975188019866, 0.2689662745071255), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        (("paper", 1.0, 10, 0), TypeError, "problem"),
        ((None, 0.0, 10, 0), ValueError, "alpha"),
        ((None, -1.0, 10, 0), ValueError, "alpha"),
        ((None, np.nan, 10, 0), ValueError, "alpha"),
        ((None, 0.01, 10, 0), ValueError, "alpha"),
        ((None, "1", 10, 0), TypeError, "alpha"),
        ((None, 1.0, 1, 0), ValueError, "d"),
        ((None, 1.0, 10.0, 0), TypeError, "d"),
        ((None, 1.0, True, 0), TypeError, "d"),
        ((None, 1.0, 10, -1), ValueError, "seed"),
        ((None, 1.0, 10, 0.5), TypeError, "seed"),
    ],
)
def test_bad_arguments_are_named(arguments, error, name):
    problem, *rest = arguments
    with pytest.raises(error, match=f"^{name}:"):
        Draw(Problem.paper() if problem is None else problem, *rest)


def test_a_dimension_too_small_for_the_spectrum_is_refused():
    with pytest.raises(ValueError, match="d: 5,"):
        Draw(spectrum_problem(), 1.0, 5, 0)


def test_sample_count_rounds():
    assert sample_count(1.5, 1000) == 1500
    assert sample_count(0.29, 100) == 29


def test_sampling_does_not_load_torch():
    code = (
        "import sys, phasecore.sampling, phasecore.measurement; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
