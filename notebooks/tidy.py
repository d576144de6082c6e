"""Bring the chapters to the form in which they are committed.

    python notebooks/tidy.py [--execute] [NOTEBOOK ...]

Outputs and execution counts are removed, except those of the cells tagged both
``nbval-check-output`` and ``keep_output``: they are what ``pytest --nbval`` compares a fresh run
with. (nbstripout alone removes every count or none, and nbval fails a kept output without one.)
With ``--execute`` every cell is run first, so the kept outputs are those of the code as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbstripout import strip_output

CHECKED = {"nbval-check-output", "keep_output"}
EDITOR_STATE = [
    "metadata.language_info.version",
    "metadata.signature",
    "metadata.vscode",
    "metadata.widgets",
    "cell.metadata.ExecuteTime",
    "cell.metadata.collapsed",
    "cell.metadata.execution",
    "cell.metadata.scrolled",
]


def is_checked(cell: nbformat.NotebookNode) -> bool:
    """Whether the outputs of this cell are kept and compared."""
    return set(cell.metadata.get("tags", [])) >= CHECKED


def tidy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Strip ``notebook`` in place, as described above."""
    strip_output(
        notebook, keep_output=False, keep_count=True, keep_id=True, extra_keys=EDITOR_STATE
    )
    for cell in notebook.cells:
        if cell.cell_type == "code" and not is_checked(cell):
            cell.execution_count = None
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description="Bring the chapters to their committed form.")
    parser.add_argument("--execute", action="store_true", help="run the notebooks first")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: every chapter")
    arguments = parser.parse_args()
    for path in arguments.notebooks or sorted(Path(__file__).parent.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if arguments.execute:
            print(f"executing {path}", flush=True)
            NotebookClient(
                notebook, timeout=300, resources={"metadata": {"path": path.parent}}
            ).execute()
        nbformat.write(tidy(notebook), path)


if __name__ == "__main__":
    main()
