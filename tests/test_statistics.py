"""Means over seeds and their comparison with theory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from phasecore.statistics import compare_with_theory, mean_interval


def entry(**changes):
    return {
        "mean": 1.0,
        "stderr": 0.1,
        "n": 10,
        "theory": 1.2,
        "theory_stderr": 0.0,
    } | changes


def test_interval_of_a_worked_example():
    result = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert result.n == 4
    assert result.mean == 2.5
    assert result.stderr == pytest.approx(np.sqrt(5 / 3) / 2)
    assert result.high - result.mean == pytest.approx(3.182446 * result.stderr, rel=1e-6)
    assert result.mean - result.low == pytest.approx(result.high - result.mean)


def test_interval_covers_at_its_stated_rate():
    samples = np.random.default_rng(0).standard_normal((4000, 4))
    covered = sum(low <= 0 <= high for _, _, low, high, _ in map(mean_interval, samples))
    # Four binomial standard deviations; a normal quantile would cover 86% only.
    assert abs(covered / 4000 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)


def test_comparison_with_an_exact_theory_is_the_one_sample_t_test():
    x = np.random.default_rng(1).normal(0.3, 1.0, 12)
    mean = mean_interval(x)
    row = entry(mean=mean.mean, stderr=mean.stderr, n=12, theory=0.0)
    result = compare_with_theory([row]).iloc[0]
    expected = stats.ttest_1samp(x, 0.0)
    assert result.t == pytest.approx(expected.statistic)
    assert result.p == pytest.approx(expected.pvalue)
    assert result.p_bonferroni == result.p


def test_an_uncertain_theory_widens_the_comparison():
    table = compare_with_theory([entry(), entry(theory_stderr=0.2)])
    assert table.t[1] == pytest.approx(-0.2 / np.hypot(0.1, 0.2))
    # Welch: (.01 + .04)^2 / (.01^2 / 9) = 225 degrees of freedom.
    assert table.p[1] == pytest.approx(2 * stats.t.sf(0.2 / np.hypot(0.1, 0.2), 225))


def test_no_spread_in_the_sample_leaves_the_normal_law():
    result = compare_with_theory([entry(stderr=0.0, theory_stderr=0.1)]).iloc[0]
    assert result.p == pytest.approx(2 * stats.norm.sf(2.0))


def test_correction_multiplies_by_the_number_of_rows_and_labels_survive():
    table = compare_with_theory(pd.DataFrame([entry(name=c) for c in "abc"], index=[5, 5, 7]))
    assert list(table["name"]) == ["a", "b", "c"]
    assert table.p_bonferroni.to_numpy() == pytest.approx(3 * table.p.to_numpy())
    assert compare_with_theory([entry(theory=1.0)] * 3).p_bonferroni.max() == 1.0


def test_p_values_are_uniform_under_the_null():
    rng = np.random.default_rng(2)
    rows = []
    for x in rng.standard_normal((3000, 5)):
        mean = mean_interval(x)
        rows.append(entry(mean=mean.mean, stderr=mean.stderr, n=5, theory=0.0))
    assert stats.kstest(compare_with_theory(rows).p, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("samples", [[], [1.0], [[1.0, 2.0]], [1.0, np.nan], [1.0, np.inf]])
def test_bad_samples(samples):
    with pytest.raises(ValueError, match="samples"):
        mean_interval(samples)


@pytest.mark.parametrize("confidence", [0, 1, 1.5, np.nan])
def test_bad_confidence(confidence):
    with pytest.raises(ValueError, match="confidence"):
        mean_interval([1.0, 2.0], confidence)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"n": 1}, "n"),
        ({"stderr": -0.1}, "stderr"),
        ({"theory_stderr": -0.1}, "theory_stderr"),
        ({"stderr": 0.0}, "stderr"),
        ({"mean": np.nan}, "mean"),
        ({"theory": np.inf}, "theory"),
    ],
)
def test_bad_entries(changes, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        compare_with_theory([entry(), entry(**changes)])


def test_missing_columns_are_named():
    with pytest.raises(ValueError, match="theory_stderr"):
        compare_with_theory([{k: v for k, v in entry().items() if k != "theory_stderr"}])
    with pytest.raises(ValueError, match="entries"):
        compare_with_theory([])
