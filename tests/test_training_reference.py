"""Training at the size of the paper: known values, time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from phasecore import Problem
from phasecore.statistics import mean_interval
from phasecore.training import train

# Means and standard errors of an earlier, independent implementation: six seeds, d = 1000,
# alpha = 2, omega = .3, sigma = .5.
KNOWN = {
    "positional": {"train_loss": (4.50e-3, 9e-5), "test_mse": (3.50e-3, 6e-5), "m": (0.254, 5e-3)},
    "semantic": {
        "train_loss": (3.62e-3, 3e-5),
        "test_mse": (1.45e-3, 4e-5),
        "theta": (0.157, 2e-3),
    },
}


@pytest.mark.parametrize("init", ["positional", "semantic"])
def test_known_values_at_dimension_1000(init):
    table = train(Problem.paper(), 2.0, 1000, range(6), init, device="cpu", progress=False)
    assert (table.status == "converged").all()
    assert (table.branch == init).all()
    for name, (value, stderr) in KNOWN[init].items():
        mean = mean_interval(table[name])
        assert abs(mean.mean - value) < 3.5 * np.hypot(mean.stderr, stderr), name
    print(f"\n{init}: optimisation {table.seconds.mean():.2f} s a seed")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak from /proc")
def test_peak_memory_is_below_two_and_a_half_times_the_data():
    """In a fresh process, with 512 MB of x. ru_maxrss would inherit the peak of this process."""
    code = """
        from phasecore import Problem
        from phasecore.training import train
        def peak():
            status = open("/proc/self/status").read()
            return 1024 * int(status.split("VmHWM:")[1].split()[0])
        def run(alpha, d):
            train(Problem.paper(), alpha, d, [0], device="cpu", max_steps=3, progress=False)
        run(2, 20)
        before = peak()
        run(32, 1000)
        print((peak() - before) / (32 * 1000 * 2 * 1000 * 8))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(f"\npeak memory {float(out):.2f} times the data")
    assert 1 <= float(out) <= 2.5
