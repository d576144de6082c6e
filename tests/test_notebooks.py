"""The chapters are committed in the form that readers, Colab, nbval and papermill all need."""

from __future__ import annotations

import copy
import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import papermill
import pytest
import yaml
from papermill.execute import execute_notebook

from notebook_parameters import CI_PARAMETERS
from tidy import CHECKED, is_checked, tidy

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MYST = {
    "directive": r"^\s*(`{3,}|:{3,}|~{3,})\s*\{",
    "role": r"\{[\w:.-]+\}`",
    "target": r"^\([\w-]+\)=\s*$",
    "substitution": r"\{\{.*?\}\}",
}


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def notebook(chapter: Path) -> nbformat.NotebookNode:
    return nbformat.read(chapter, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_table_of_contents_lists_every_chapter():
    toc = (ROOT / "_toc.yml").read_text()
    assert re.findall(r"notebooks/(\w+)", toc) == [path.stem for path in CHAPTERS]
    assert list(CI_PARAMETERS) == [path.stem for path in CHAPTERS]


def test_is_valid(notebook):
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"


def test_is_tidy(notebook):
    before = copy.deepcopy(notebook)
    assert tidy(notebook) == before, "run `make strip`"


def test_checked_cells_keep_text_and_count(notebook):
    checked = [cell for cell in code_cells(notebook) if is_checked(cell)]
    assert checked, "no cell is tagged nbval-check-output and keep_output: nbval checks nothing"
    for cell in checked:
        assert cell.outputs, f"run `make refresh`: no output kept under {cell.source!r}"
        assert cell.execution_count is not None
        for output in cell.outputs:
            assert output.output_type == "stream" or set(output.data) == {"text/plain"}
    for cell in code_cells(notebook):
        tags = set(cell.metadata.get("tags", []))
        assert len(tags & CHECKED) in (0, 2), f"one of two tags: {sorted(tags)}"


def test_cells_are_few_and_short(notebook):
    cells = code_cells(notebook)
    assert len(cells) <= 20
    assert len(cells[0].source.splitlines()) <= 6, "setup cell"
    for cell in cells:
        assert len(cell.source.splitlines()) <= 15, cell.source
        assert not re.search(r";\s*$", cell.source, re.M), f"write `_ = ...`: {cell.source}"
        for line in cell.source.splitlines():
            assert len(line) <= 80, f"runs out of the column of the page: {line}"


def test_text_reads_the_same_in_colab(notebook):
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for name, pattern in MYST.items():
            found = re.search(pattern, cell.source, re.M)
            assert not found, f"MyST {name} in a notebook: {found.group(0)!r}"
        assert not re.search(r"!\[.*?\]\(https?:|<img[^>]*https?:", cell.source), "remote image"


def test_every_figure_has_alt_text_and_a_caption(notebook):
    for cell, below in itertools.pairwise(notebook.cells):
        if cell.cell_type == "code" and re.search(r"plt\.(subplots|figure)\(", cell.source):
            assert cell.metadata.get("mystnb", {}).get("image", {}).get("alt"), cell.source
            assert below.cell_type == "markdown", cell.source
            assert re.match(r"\*[^*\n]+\*(\n|$)", below.source), "no caption in italics"


def test_follows_the_template(notebook):
    headings = [
        line
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if re.match("#+ ", line)
    ]
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    sections = [line for line in headings if re.match(r"## \d+\. ", line)]
    assert sections == [f"## {k}. {line.split('. ', 1)[1]}" for k, line in enumerate(sections, 1)]
    assert text.count("**Claim.**") == len(sections)
    assert text.count("**Predict before you run.**") == len(sections)
    assert text.count("**What to see.**") == len(sections)
    assert re.search(r"\*In this chapter\* \(\d+ minutes\)", text)
    assert "*You need*" in text
    end = headings.index("## Summary")
    exercises = [line for line in headings[end:] if line.startswith("### ")]
    assert [line for line in headings[end:] if line.startswith("## ")] == [
        "## Summary",
        "## Exercises",
        "## Further reading",
    ]
    kinds = [re.fullmatch(r"### \d+ \((warm-up|core|open)\)", line) for line in exercises]
    assert {kind[1] for kind in kinds if kind} == {"warm-up", "core", "open"}
    assert all(kinds), exercises
    assert text.count("<details>") == text.count("</details>") == len(exercises)


def test_parameters_are_those_injected(chapter):
    known = papermill.inspect_notebook(str(chapter))
    assert known, "no cell is tagged `parameters`"
    assert set(CI_PARAMETERS[chapter.stem]) <= set(known)


def test_colab_button(chapter, notebook):
    repository = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]
    path = repository["url"].removeprefix("https://github.com/")
    address = f"https://colab.research.google.com/github/{path}/blob/{repository['branch']}"
    assert f"{address}/notebooks/{chapter.name}" in notebook.cells[0].source


def solutions(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code in the folded solutions, as cells to be run after the chapter."""
    return [
        nbformat.v4.new_code_cell(code)
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for folded in re.findall(r"<details>.*?</details>", cell.source, re.S)
        for code in re.findall(r"```python\n(.*?)```", folded, re.S)
    ]


@pytest.mark.slow
def test_runs_with_small_parameters(chapter, notebook, tmp_path):
    notebook.cells += solutions(notebook)
    with_solutions = tmp_path / "with_solutions.ipynb"
    nbformat.write(notebook, with_solutions)
    execute_notebook(
        str(with_solutions),
        str(tmp_path / chapter.name),
        parameters=CI_PARAMETERS[chapter.stem],
        cwd=str(chapter.parent),
        progress_bar=False,
    )


def nbval(notebook: nbformat.NotebookNode, folder: Path) -> dict[str, bool]:
    """Run `pytest --nbval` on the notebook; whether each cell passed."""
    path, report = folder / "chapter.ipynb", folder / "report.xml"
    nbformat.write(notebook, path)
    options = ["--nbval", "-p", "no:cacheprovider", f"--rootdir={folder}", f"--junitxml={report}"]
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, *options, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return {case.attrib["name"]: not len(case) for case in ET.parse(report).iter("testcase")}


@pytest.mark.slow
def test_kept_outputs_are_those_of_a_fresh_run(notebook, tmp_path):
    passed = nbval(notebook, tmp_path)
    assert len(passed) == len(code_cells(notebook))
    assert all(passed.values()), f"`make refresh` if the change is meant: {passed}"


@pytest.mark.slow
def test_a_doctored_number_fails_in_exactly_its_cell(notebook, tmp_path):
    number = next(n for n, cell in enumerate(code_cells(notebook)) if is_checked(cell))
    output = code_cells(notebook)[number].outputs[0]
    holder, key = (output, "text") if "text" in output else (output.data, "text/plain")
    holder[key], doctored = re.subn(r"\d(?=\D*$)", lambda d: str(9 - int(d[0])), holder[key])
    assert doctored == 1, f"no number in {holder[key]!r}"
    failed = {name for name, passed in nbval(notebook, tmp_path).items() if not passed}
    assert failed == {f"Cell {number}"}
