"""Means over seeds, and their comparison with theory: shared by the tests and the chapters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from phasecore.checks import finite_array, number

ENTRY = ("mean", "stderr", "n", "theory", "theory_stderr")


class Mean(NamedTuple):
    """A sample mean, its standard error, and the ends of its confidence interval."""

    mean: float
    stderr: float
    low: float
    high: float
    n: int


def mean_interval(samples: Any, confidence: float = 0.95) -> Mean:
    """Mean of independent samples with a Student-t interval.

    ``stderr = s / sqrt(n)`` with s the unbiased standard deviation, and the interval is
    ``mean -+ t_{n-1} stderr`` with ``t_{n-1}`` the two-sided quantile of Student's law.

    Parameters
    ----------
    samples : (n,), n >= 2
    confidence : probability that such an interval covers the mean, in (0, 1).

    Raises
    ------
    TypeError, ValueError naming the argument and the value.
    """
    values = finite_array("samples", samples)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"samples: shape {values.shape}, expected (n,) with n >= 2")
    confidence = number("confidence", confidence, above=0.0)
    if confidence >= 1:
        raise ValueError(f"confidence: {confidence}, expected a number below 1")
    n, mean = len(values), float(values.mean())
    stderr = float(values.std(ddof=1) / np.sqrt(n))
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * stderr
    return Mean(mean, stderr, mean - half, mean + half, n)


def compare_with_theory(entries: pd.DataFrame | Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Test each sample mean against its theory, corrected for the number of tests.

    Parameters
    ----------
    entries : table (or iterable of dicts) with the columns ``mean``, ``stderr``, ``n`` (number of
        samples, >= 2), ``theory`` and ``theory_stderr`` (0 if exact). Others are kept as labels.

    Returns
    -------
    DataFrame: the entries with three more columns,

        t = (mean - theory) / (stderr^2 + theory_stderr^2)^{1/2}
        p             two-sided, Student's law with Welch's (1947) number of degrees of freedom,
                      the error of the theory counted as known
        p_bonferroni  min(1, p times the number of rows)

    Raises
    ------
    ValueError, TypeError
        A column is missing or not finite, n < 2, a negative error, or both errors zero.
    """
    table = pd.DataFrame(entries).reset_index(drop=True)
    missing = [name for name in ENTRY if name not in table]
    if missing or table.empty:
        raise ValueError(f"entries: {len(table)} rows without {missing}, expected rows of {ENTRY}")
    mean, stderr, n, theory, theory_stderr = (finite_array(name, table[name]) for name in ENTRY)
    variance = stderr**2 + theory_stderr**2
    for name, wrong in (
        ("n", n < 2),
        ("stderr", stderr < 0),
        ("theory_stderr", theory_stderr < 0),
        ("stderr", variance == 0),
    ):
        if wrong.any():
            raise ValueError(f"{name}: row {np.argmax(wrong)} is {table[name][np.argmax(wrong)]}")
    t = (mean - theory) / np.sqrt(variance)
    # Written so that stderr = 0 gives infinitely many degrees of freedom, the normal law.
    share = stderr**2 / variance
    with np.errstate(divide="ignore"):
        freedom = (n - 1) / share**2
    p = 2 * stats.t.sf(np.abs(t), freedom)
    return table.assign(t=t, p=p, p_bonferroni=np.minimum(1.0, p * len(table)))
