"""What the tests put in the `parameters` cell of each chapter: small, so that a run takes seconds.

Every chapter has an entry, and every name in it is one that the chapter's cell assigns
(`tests/test_notebooks.py` checks both: papermill accepts an unknown name without a word).
"""

from __future__ import annotations

from typing import Any

CI_PARAMETERS: dict[str, dict[str, Any]] = {
    "01_setup": {"d": 200},
    "02_two_minima": {"d": 200, "n_seeds": 2, "n_nodes": 2**10},
}
