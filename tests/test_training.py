"""Training at finite dimension: the risk, the independence of members, what is reported."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from tqdm import tqdm

from phasecore import Problem, Tokens, risk, training
from phasecore.risk import EmpiricalRisk, estimate_test_mse
from phasecore.sampling import Draw
from phasecore.training import train

COLUMNS = [
    "alpha",
    "branch",
    "m",
    "theta",
    "q",
    "V",
    "train_loss",
    "test_mse",
    "residual",
    "status",
    "m_signed",
    "theta_signed",
    "seed",
    "d",
    "n",
    "init",
    "grad_norm",
    "steps",
    "seconds",
    "optimizer",
]
A2 = ((0.6, 0.4), (0.4, 0.6))
A3 = ((0.5, 0.3, 0.2), (0.3, 0.4, 0.3), (0.2, 0.3, 0.5))
LEVELS = Tokens(
    (1.0, 0.0, -1.0),
    [0.1 * np.eye(3) + 0.05, np.diag([0.5, 0.3, 0.2])],
    [0.5, 0.5],
)
PROBLEMS = {
    "paper": Problem.paper(),
    "untied": Problem.paper(tied=False, lam=(0.02, 0.005), correlation=0.3),
    "general": Problem(LEVELS, A3, 0.4, 0.03, teacher_rank=2, rank=2, beta=1.5),
}
CPU = {"device": "cpu", "progress": False}


def explicit_errors(problem, x, p, teacher, w):
    """|y - f|^2 of each sentence, written from the definition of the model."""
    d, r = x.shape[2], problem.rank
    q, k = (w, w) if problem.tied else (w[:, :r], w[:, r:])
    out = []
    for sentence in x:
        h = sentence @ teacher
        target = (1 - problem.omega) * softmax(h @ h.T / d, axis=1) + problem.omega * problem.A
        seen = sentence + p
        f = softmax(problem.beta * (seen @ q) @ (seen @ k).T / d, axis=1) @ seen
        out.append(((target @ sentence - f) ** 2).sum())
    return np.array(out)


def weights_for(draw, size=0.7, seed=0):
    noise = np.random.default_rng(seed).standard_normal((draw.d, draw.problem.n_fields))
    return size * noise + 0.3 * np.sqrt(draw.d) * draw.directions[0][:, None]


@pytest.mark.parametrize("name", PROBLEMS)
def test_gram_form_of_the_risk_is_the_direct_form(name):
    problem = PROBLEMS[name]
    draw = Draw(problem, 1.5, 40, 1)
    x = np.concatenate([c.copy() for c in draw.train_chunks()])
    w = weights_for(draw)
    errors = explicit_errors(problem, x, draw.encodings, draw.teacher, w)
    ridge = (problem.ridge * (w**2).sum(0)).sum() / 2
    value = EmpiricalRisk(draw, "cpu").value(w)
    assert value == pytest.approx(errors.sum() / 80 + ridge, rel=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_is_the_finite_difference_of_the_risk(name):
    draw = Draw(PROBLEMS[name], 1.5, 40, 1)
    empirical = EmpiricalRisk(draw, "cpu")
    w = weights_for(draw)
    _, gradient = empirical.value_and_gradient(w)
    for seed in range(3):
        v = np.random.default_rng(seed).standard_normal(w.shape)
        h = 1e-5
        slope = (empirical.value(w + h * v) - empirical.value(w - h * v)) / (2 * h)
        assert (gradient * v).sum() == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("name", PROBLEMS)
def test_test_error_is_its_explicit_formula_on_fresh_sentences(name, monkeypatch):
    problem = PROBLEMS[name]
    draw = Draw(problem, 1.0, 30, 2)
    x = np.concatenate([c.copy() for c in draw.test_chunks(50)])
    w = weights_for(draw)
    errors = explicit_errors(problem, x, draw.encodings, draw.teacher, w)
    expected = errors.mean() / (30 * problem.length)
    assert estimate_test_mse(draw, w, 50, "cpu") == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr("phasecore.sampling.CHUNK", 700)
    assert estimate_test_mse(draw, w, 50, "cpu") == pytest.approx(expected, rel=1e-12)


def test_attention_of_the_student_and_the_target():
    draw = Draw(PROBLEMS["general"], 1.0, 30, 2)
    x = next(draw.train_chunks())
    w = weights_for(draw)
    student, target = EmpiricalRisk(draw, "cpu").attention(w)
    seen, h = x[4] + draw.encodings, x[4] @ draw.teacher
    assert np.allclose(student[:, :, 4], softmax(1.5 * (seen @ w) @ (seen @ w).T / 30, axis=1))
    assert np.allclose(target[:, :, 4], 0.6 * softmax(h @ h.T / 30, axis=1) + 0.4 * np.array(A3))


def test_what_is_reported_describes_the_returned_weights():
    table, weights = train(
        PROBLEMS["paper"], 2.0, 150, [4, 9], "semantic", n_test=60, return_weights=True, **CPU
    )
    assert list(table.columns) == COLUMNS
    assert weights.shape == (2, 150, 1)
    for row, w in zip(table.itertuples(), weights, strict=True):
        draw = Draw(PROBLEMS["paper"], 2.0, 150, row.seed)
        value, gradient = EmpiricalRisk(draw, "cpu").value_and_gradient(w)
        assert row.status == "converged"
        assert row.train_loss == value / 150
        assert row.grad_norm == pytest.approx(np.linalg.norm(gradient) / np.sqrt(150))
        assert row.grad_norm <= 1e-7
        assert row.test_mse == estimate_test_mse(draw, w, 60, "cpu")
        assert row.m == pytest.approx(abs(w.sum()) / 150)
        assert row.q == pytest.approx(0.25 * (w**2).sum() / 150)
        assert (row.n, row.d, row.alpha, row.optimizer) == (300, 150, 2.0, "lbfgs")
        assert row.steps > 5
        assert row.seconds > 0
    assert table[["V", "residual"]].isna().all(axis=None)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_seed_alone_equals_the_same_seed_in_a_batch(name):
    """Bitwise: the members of a batch share no arithmetic. d is odd, so that rows misalign."""
    settings = dict(n_test=100, return_weights=True, max_steps=80, **CPU)
    together, weights = train(PROBLEMS[name], 2.0, 101, [3, 1, 7], "random", **settings)
    for i, seed in enumerate(together.seed):
        alone, own = train(PROBLEMS[name], 2.0, 101, [seed], "random", **settings)
        assert np.array_equal(own[0], weights[i])
        numbers = [c for c in alone.select_dtypes("number") if c != "seconds"]
        pd.testing.assert_frame_equal(
            alone[numbers], together.loc[[i], numbers].reset_index(drop=True), rtol=1e-8
        )


def test_optimisers_reach_the_same_minimum():
    results = {
        name: train(
            Problem.paper(lam=0.1), 4.0, 60, [0], "random", optimizer=name, tol=1e-8, n_test=10,
            return_weights=True, max_steps=6000, **CPU,
        )
        for name in ("lbfgs", "gd", "adam")
    }  # fmt: skip
    reference = results["lbfgs"][1]
    assert np.abs(reference).max() > 0.1
    for name, (table, weights) in results.items():
        assert table.status[0] == "converged", name
        assert np.abs(weights - reference).max() < 1e-5, name


def test_a_run_that_leaves_its_basin_says_so():
    """Three tokens on a line: at this point training from the encodings ends semantic."""
    problem = Problem(Tokens.isotropic(3, 0.5, positions=(1.0, 0.0, -1.0)), A3, 0.3, 0.01)
    row = train(problem, 2.0, 200, [0], "positional", n_test=10, **CPU).iloc[0]
    assert row.branch == "semantic"
    assert row.status == "left the positional branch"
    cut = train(problem, 2.0, 200, [0], "positional", n_test=10, max_steps=25, **CPU).iloc[0]
    assert cut.status == "left the positional branch; stopped at the step limit"
    free = train(problem, 2.0, 200, [0], "random", n_test=10, **CPU).iloc[0]
    assert (free.branch, free.status) == ("semantic", "converged")


def test_unfinished_runs_say_why():
    common = dict(n_test=10, **CPU)
    row = train(Problem.paper(), 2.0, 100, [0], max_steps=3, **common).iloc[0]
    assert (row.status, row.steps) == ("stopped at the step limit", 3)
    row = train(Problem.paper(), 2.0, 200, [0], "semantic", dtype="float32", **common).iloc[0]
    exact = train(Problem.paper(), 2.0, 200, [0], "semantic", **common).iloc[0]
    assert row.status in ("converged", "stopped by the line search")
    assert row.train_loss == pytest.approx(exact.train_loss, rel=1e-4)
    linear = dict(optimizer="gd", learning_rate=1e3, max_steps=200)
    with np.errstate(over="ignore"):
        row = train(Problem.paper(lam=5.0), 2.0, 20, [0], **linear, **common).iloc[0]
    assert row.status == "diverged"


def test_a_batch_that_runs_out_of_memory_is_halved(monkeypatch):
    problem, settings = Problem.paper(), dict(n_test=10, **CPU)
    expected = train(problem, 1.0, 50, range(5), **settings)
    sizes, whole = [], training._train_batch
    cpu = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    errors = itertools.cycle([torch.OutOfMemoryError("allocation failed"), MemoryError(), cpu])

    def scarce(draws, *rest):
        sizes.append(len(draws))
        if len(draws) > 1:
            raise next(errors)
        return whole(draws, *rest)

    monkeypatch.setattr(training, "_train_batch", scarce)
    split = train(problem, 1.0, 50, range(5), **settings)
    assert sizes == [5, 2, 1, 1, 3, 1, 2, 1, 1]
    pd.testing.assert_frame_equal(split.drop(columns="seconds"), expected.drop(columns="seconds"))


@pytest.mark.parametrize("error", [MemoryError("none left"), RuntimeError("a bug")])
def test_an_error_that_halving_cannot_help_is_raised(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(training, "EmpiricalRisk", fail)
    with pytest.raises(type(error), match=str(error)):
        train(Problem.paper(), 1.0, 50, [0, 1], **CPU)


def test_data_held_at_once_is_bounded(monkeypatch):
    sizes, whole = [], training._train_batch

    def recorded(draws, *rest):
        sizes.append(len(draws))
        return whole(draws, *rest)

    monkeypatch.setattr(training, "_train_batch", recorded)
    # A member holds 50 x 2 x (50 + 6) float64 numbers: 44.8 kB.
    train(Problem.paper(), 1.0, 50, range(5), n_test=10, batch_gb=1e-4, **CPU)
    train(Problem.paper(), 1.0, 50, range(2), n_test=10, batch_gb=1e-9, **CPU)
    assert sizes == [2, 2, 1, 1, 1]


def test_threads_are_left_as_they_were_and_a_single_one_is_used(monkeypatch):
    before, seen = torch.get_num_threads(), []
    evaluate = risk.EmpiricalRisk.evaluate

    def spy(self, weights):
        seen.append(torch.get_num_threads())
        return evaluate(self, weights)

    monkeypatch.setattr(risk.EmpiricalRisk, "evaluate", spy)
    torch.set_num_threads(2)
    try:
        train(Problem.paper(), 1.0, 50, [0], n_test=10, **CPU)
        assert torch.get_num_threads() == 2
        assert set(seen) == {1}
    finally:
        torch.set_num_threads(before)


def test_no_progress_bar_where_nobody_looks(capsys):
    train(Problem.paper(), 1.0, 50, [0], n_test=10, device="cpu")
    train(Problem.paper(), 1.0, 50, [0], n_test=10, **CPU)
    assert capsys.readouterr() == ("", "")


def test_a_slow_run_shows_its_evaluations_and_counts_seeds(capsys, monkeypatch):
    impatient = {"delay": 0, "mininterval": 0, "ncols": 100}
    monkeypatch.setattr(training, "tqdm", lambda **kw: tqdm(**kw | impatient))
    train(Problem.paper(), 1.0, 50, [0, 1], n_test=10, device="cpu", progress=True)
    shown = capsys.readouterr().err
    assert "0/2" in shown
    assert "2 running, evaluation 3" in shown
    assert "2/2" in shown


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"problem": "paper"}, TypeError),
        ({"alpha": 0.0}, ValueError),
        ({"alpha": -1}, ValueError),
        ({"alpha": np.nan}, ValueError),
        ({"alpha": 0.001}, ValueError),
        ({"alpha": "2"}, TypeError),
        ({"d": 1}, ValueError),
        ({"d": 50.0}, TypeError),
        ({"seeds": []}, ValueError),
        ({"seeds": [1, 1]}, ValueError),
        ({"seeds": [-1]}, ValueError),
        ({"seeds": [0.5]}, TypeError),
        ({"seeds": [True]}, TypeError),
        ({"seeds": 3}, TypeError),
        ({"seeds": "3"}, TypeError),
        ({"init": "warm"}, ValueError),
        ({"optimizer": "sgd"}, ValueError),
        ({"device": "tpu"}, ValueError),
        ({"device": "cuda:99"}, ValueError),
        ({"device": 0}, TypeError),
        ({"dtype": "float16"}, ValueError),
        ({"scale": 0.0}, ValueError),
        ({"learning_rate": 0.1}, ValueError),
        ({"tol": 0.0}, ValueError),
        ({"tol": np.nan}, ValueError),
        ({"max_steps": 0}, ValueError),
        ({"n_test": 0}, ValueError),
        ({"batch_gb": 0}, ValueError),
        ({"progress": "yes"}, TypeError),
        ({"return_weights": None}, TypeError),
    ],
)
def test_bad_arguments_are_named_before_any_work(changes, error, monkeypatch):
    def work(*_):
        raise AssertionError("work started")

    monkeypatch.setattr(training, "EmpiricalRisk", work)
    arguments = dict(problem=Problem.paper(), alpha=1.0, d=50, seeds=[0]) | changes
    with pytest.raises(error, match=f"^{next(iter(changes))}:"):
        train(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_is_refused_where_there_is_none():
    with pytest.raises(ValueError, match="device: 'cuda'"):
        train(Problem.paper(), 1.0, 50, [0], device="cuda")
