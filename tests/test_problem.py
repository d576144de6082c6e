"""Problem and Tokens: validation of every argument, serialisation, and the limits they contain."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phasecore as pc
from phasecore import Problem, Tokens

EYE = np.eye(2)[None]
NAN = float("nan")


def tokens(positions=(1.0, -1.0), covariances=EYE, weights=(1.0,)):
    return Tokens(positions, covariances, weights)


def make(A=((0.6, 0.4), (0.4, 0.6)), omega=0.3, lam=0.01, **options):
    return Problem(Tokens.isotropic(), A, omega, lam, **options)


def solve(alpha=1.0, branch="positional", **options):
    return pc.state_evolution(Problem.paper(), alpha, branch, **options)


# (call, exception, the argument's name, what of its value the message shows)
BAD = [
    (lambda: tokens(positions=1.0), ValueError, "positions", "()"),
    (lambda: tokens(positions=[1.0]), ValueError, "positions", "1 token"),
    (lambda: tokens(positions=["a", "b"]), TypeError, "positions", "a"),
    (lambda: tokens(positions=[1.0, NAN]), ValueError, "positions", "nan"),
    (lambda: tokens(covariances=np.eye(3)[None]), ValueError, "covariances", "(1, 3, 3)"),
    (lambda: tokens(covariances=np.eye(2)), ValueError, "covariances", "(2, 2)"),
    (lambda: tokens(covariances=[[[1, 0.5], [0, 1]]]), ValueError, "covariances", "symmetric"),
    (lambda: tokens(covariances=[[[1, 2], [2, 1]]]), ValueError, "covariances", "-1"),
    (lambda: tokens(covariances=[[[1, 1], [1, 1]]]), ValueError, "covariances", "definite"),
    (lambda: tokens(weights=[0.5, 0.5]), ValueError, "weights", "(2,)"),
    (lambda: tokens(weights=[0.7]), ValueError, "weights", "0.7"),
    (lambda: Tokens.isotropic(length=1), ValueError, "length", "1"),
    (lambda: Tokens.isotropic(length=2.0), TypeError, "length", "2.0"),
    (lambda: Tokens.isotropic(sigma=0), ValueError, "sigma", "0"),
    (lambda: Tokens.isotropic(sigma="big"), TypeError, "sigma", "big"),
    (lambda: Tokens.isotropic(correlation=1.0), ValueError, "correlation", "1.0"),
    (lambda: Tokens.isotropic(correlation=-1.0), ValueError, "correlation", "-1.0"),
    (lambda: Tokens.isotropic(3), ValueError, "positions", "(1.0, -1.0)"),
    (lambda: Problem("x", EYE[0], 0.3, 0.01), TypeError, "tokens", "str"),
    (lambda: make(A=[[0.6, 0.3], [0.4, 0.6]]), ValueError, "A", "0.3"),
    (lambda: make(A=[[1.6, -0.6], [0.4, 0.6]]), ValueError, "A", "-0.6"),
    (lambda: make(A=np.eye(3)), ValueError, "A", "(3, 3)"),
    (lambda: make(omega=1.1), ValueError, "omega", "1.1"),
    (lambda: make(omega=-0.1), ValueError, "omega", "-0.1"),
    (lambda: make(omega=NAN), ValueError, "omega", "nan"),
    (lambda: make(omega=None), TypeError, "omega", "None"),
    (lambda: make(lam=-1), ValueError, "lam", "-1"),
    (lambda: make(lam=(0.1, 0.1)), ValueError, "lam", "(0.1, 0.1)"),
    (lambda: make(rank=0), ValueError, "rank", "0"),
    (lambda: make(rank=1.5), TypeError, "rank", "1.5"),
    (lambda: make(teacher_rank=-2), ValueError, "teacher_rank", "-2"),
    (lambda: make(tied="no"), TypeError, "tied", "no"),
    (lambda: make(beta=0.0), ValueError, "beta", "0"),
    (lambda: make(attention="sharpmax"), ValueError, "attention", "sharpmax"),
    (lambda: make(attention=3), TypeError, "attention", "3"),
    (lambda: make(value=1), ValueError, "value", "1"),
    (lambda: solve(alpha=0.0), ValueError, "alpha", "0"),
    (lambda: solve(alpha=NAN), ValueError, "alpha", "nan"),
    (lambda: solve(alpha="1"), TypeError, "alpha", "'1'"),
    (lambda: solve(branch="both"), ValueError, "branch", "both"),
    (lambda: solve(n_nodes=100), ValueError, "n_nodes", "100"),
    (lambda: solve(n_nodes=1e4), TypeError, "n_nodes", "10000.0"),
    (lambda: solve(seed=-1), ValueError, "seed", "-1"),
    (lambda: solve(scrambles=0), ValueError, "scrambles", "0"),
    (lambda: solve(tol=0), ValueError, "tol", "0"),
    (lambda: solve(start=3), TypeError, "start", "int"),
    (lambda: solve(branch="semantic", start=solve(2.0, n_nodes=512)), ValueError, "start", "pos"),
    (
        lambda: pc.state_evolution(
            Problem.paper(rank=2), 2.0, "positional", start=solve(2.0, n_nodes=512)
        ),
        ValueError,
        "start",
        "(1, 1, 1)",
    ),
    (lambda: Problem.from_dict({}), ValueError, "d", "omega"),
    (lambda: Problem.from_dict(None), TypeError, "d", "NoneType"),
    (lambda: Problem.paper(omega=10**400), ValueError, "omega", "too large"),
    (lambda: pc.state_evolution("p", 1.0, "positional"), TypeError, "problem", "str"),
    (lambda: pc.linear_baseline(None), TypeError, "problem", "NoneType"),
]


@pytest.mark.parametrize(("call", "error", "name", "value"), BAD)
def test_bad_input_names_the_argument_and_the_value(call, error, name, value):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(f"{name}:")
    assert value in str(caught.value)


@given(
    st.floats(0, 1),
    st.floats(0.01, 3),
    st.floats(0, 5),
    st.floats(-0.9, 0.9),
    st.integers(1, 3),
    st.booleans(),
)
def test_dictionary_round_trip(omega, sigma, lam, correlation, rank, tied):
    p = Problem.paper(omega, sigma, lam, rank=rank, tied=tied, correlation=correlation)
    q = Problem.from_dict(json.loads(json.dumps(p.to_dict())))
    assert q == p
    assert (q.digest(), hash(q)) == (p.digest(), hash(p))


def test_digest_tells_problems_apart_and_is_the_same_in_another_process():
    assert len({Problem.paper(omega=w).digest() for w in (0.3, 0.30000001, 0.4)}) == 3
    code = "import phasecore as pc; print(pc.Problem.paper(omega=0.35).digest())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == Problem.paper(omega=0.35).digest()


def test_paper_is_isotropic_tokens_with_opposite_encodings():
    p = Problem.paper(sigma=0.5)
    np.testing.assert_allclose(p.tokens.rho, 0.25 * np.eye(2))
    np.testing.assert_allclose(p.tokens.positions.ravel(), [1, -1])
    assert (p.n_fields, p.tokens.sigma) == (1, 0.5)
    untied = Problem.paper(tied=False, rank=2, lam=(0.1, 0.2))
    np.testing.assert_allclose(untied.ridge, [0.1, 0.1, 0.2, 0.2])
    np.testing.assert_allclose(untied.score, np.kron([[0, 1], [0, 0]], np.eye(2)))


def test_arrays_of_a_problem_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        Problem.paper().A[0, 0] = 1


def test_importing_phasecore_loads_neither_torch_nor_matplotlib():
    code = (
        "import sys, phasecore; phasecore.state_evolution;"
        "print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
