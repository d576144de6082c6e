"""The list of deliberate mistakes (``make mutations``) still fits the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_breaks_one_place_of_a_module_that_still_compiles(mutation):
    source = (ROOT / mutation.path).read_text()
    broken = mutation.apply(source)  # raises unless the text occurs exactly once
    assert broken != source
    compile(broken, mutation.path, "exec")
    assert (ROOT / "tests" / f"test_{mutation.tests}.py").exists()


def test_names_are_unique():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 12
