"""Argument checks shared by the public functions: every error names the argument and the value."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np


def number(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> float:
    """Return ``value`` as a finite float inside the stated bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: {value!r}, expected a number")
    try:
        value = float(value) + 0.0  # -0.0 is 0.0
    except OverflowError:
        raise ValueError(f"{name}: {value}, too large") from None
    if not np.isfinite(value):
        raise ValueError(f"{name}: {value}, expected a finite number")
    if above is not None and not value > above:
        raise ValueError(f"{name}: {value}, expected a number above {above:g}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name}: {value}, expected at least {minimum:g}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name}: {value}, expected at most {maximum:g}")
    return value


def integer(name: str, value: Any, *, minimum: int) -> int:
    """Return ``value`` as an int that is at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: {value!r}, expected an integer")
    if value < minimum:
        raise ValueError(f"{name}: {value}, expected at least {minimum}")
    return int(value)


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``options``."""
    if value not in options:
        raise ValueError(f"{name}: {value!r}, expected one of {', '.join(options)}")
    return value


def finite_array(name: str, value: Any) -> np.ndarray:
    """Return a float64 copy of ``value`` without NaN or infinity."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {value!r}, expected an array of numbers") from error
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: {array.tolist()}, expected finite numbers")
    return array
