"""The quickstart of the README runs as it is printed there, and theory and training agree in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_quickstart(capsys):
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code
    assert len(code[1].splitlines()) <= 15
    exec(compile(code[1], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    pattern = r"(\w+) (\w+): theory ([\d.]+), trained ([\d.]+)"
    results = {(b, name): (float(x), float(y)) for b, name, x, y in re.findall(pattern, printed)}
    assert len(results) == 4
    # Four seeds at d = 1000, on which the trained losses lie about 1% above their limit.
    for theory, trained in results.values():
        assert trained == pytest.approx(theory, rel=0.08)
    for name in ("train_loss", "test_mse"):
        assert results["semantic", name][0] < results["positional", name][0]
    baseline = float(re.findall(r"baseline test_mse: ([\d.]+)", printed)[0])
    # 2 sigma^2 (1 - omega)^2 Var[sigmoid(h_1 (h_1 - h_2))] at sigma = 1/2: 0.0040232 (1 - omega)^2
    assert baseline == pytest.approx(0.0040232 * 0.7**2, abs=1e-5)


def test_files_named_in_the_readme_exist():
    for path in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / path).exists(), path


def test_one_repository_address():
    address = re.search(r"^  url: (\S+)$", (ROOT / "_config.yml").read_text(), re.M)
    assert address
    for name in ("pyproject.toml", "CITATION.cff"):
        assert address[1] in (ROOT / name).read_text(), name
