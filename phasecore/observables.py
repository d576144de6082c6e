"""What is reported, in one normalisation for theory and experiment.

    train_loss = min R / d,            R = sum_mu |y - f|_F^2 / (2d) + ridge
    test_mse   = E |y - f|_F^2 / (d L) on fresh data

Both are built from ``loss = (1/2) Tr[(S - T) rho (S - T)^T]``, the limit of |y - f|_F^2 / (2d).
At L = 2 these are the quantities plotted in the paper (arXiv 2402.03902).
"""

from __future__ import annotations


def train_loss(alpha: float, mean_loss: float, ridge_cost: float) -> float:
    """``alpha E[loss at the minimiser] + ridge/d``."""
    return alpha * mean_loss + ridge_cost


def test_mse(mean_loss: float, length: int) -> float:
    """``2 E[loss at fresh fields] / L``."""
    return 2 * mean_loss / length


test_mse.__test__ = False  # type: ignore[attr-defined]  # the name is the field's, not pytest's
