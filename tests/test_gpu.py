"""The CPU and CUDA give the same numbers. Skipped where there is no CUDA device."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from phasecore import Problem
from phasecore.risk import EmpiricalRisk
from phasecore.sampling import Draw
from phasecore.training import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
COMPARED = ["m", "theta", "q", "train_loss", "test_mse", "m_signed", "theta_signed"]


@pytest.mark.parametrize("tied", [True, False])
def test_risk_and_gradient_agree(tied):
    draw = Draw(Problem.paper(tied=tied, rank=2), 2.0, 501, 0)
    w = np.random.default_rng(0).standard_normal((501, draw.problem.n_fields))
    value, gradient = EmpiricalRisk(draw, "cpu").value_and_gradient(w)
    other, other_gradient = EmpiricalRisk(draw, "cuda").value_and_gradient(w)
    assert other == pytest.approx(value, rel=1e-12)
    assert np.abs(other_gradient - gradient).max() < 1e-12 * np.abs(gradient).max()


@pytest.mark.parametrize("init", ["positional", "semantic"])
def test_training_agrees(init):
    # Two stops at gradient 1e-7 may differ by more than 1e-6 in the weights, hence the tolerance.
    common = dict(init=init, tol=1e-10, n_test=512, progress=False)
    cpu = train(Problem.paper(), 2.0, 500, range(3), device="cpu", **common)
    cuda = train(Problem.paper(), 2.0, 500, range(3), device="cuda", **common)
    assert list(cpu.branch) == list(cuda.branch)
    # A pinned overlap is a difference of larger terms: its scale is that of the other overlaps.
    assert np.allclose(cuda[COMPARED], cpu[COMPARED], rtol=1e-6, atol=1e-8)


def test_a_seed_alone_equals_the_same_seed_in_a_batch():
    common = dict(device="cuda", n_test=512, progress=False)
    together = train(Problem.paper(), 2.0, 500, range(3), **common)
    alone = train(Problem.paper(), 2.0, 500, [2], **common)
    assert np.allclose(alone[COMPARED].iloc[0], together[COMPARED].iloc[2], rtol=1e-8, atol=0)


def test_time_of_a_batch():
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    table = train(Problem.paper(), 2.0, 1000, range(32), device="cuda", progress=False)
    whole = time.perf_counter() - began
    assert (table.status == "converged").all()
    print(
        f"\n32 seeds, d=1000, alpha=2, positional: {whole:.1f} s in all, "
        f"{table.seconds.sum():.1f} s of optimisation, "
        f"peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB on {torch.cuda.get_device_name()}"
    )
