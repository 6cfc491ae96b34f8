"""The notebooks of the documentation run in a kernel of Jupyter, and show progress as HTML."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.forked.forks import forked_python
from tests.project import ROOT, environment
from tests.test_plain_scripts import CHANGES

NOTEBOOKS = ROOT / "docs" / "notebooks"
# One kernel for all, as they build on each other: JAX starts once.
ORDER = ("pretrain", "finetune", "use", "classifier")
# Fewer steps: enough to learn what is looked at.
FEWER = (('"steps": 150', '"steps": 60'), ('"epochs": 12', '"epochs": 4'))


@pytest.fixture(scope="module")
def outputs(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Of each notebook its cells after it ran."""
    directory = tmp_path_factory.mktemp("notebooks")
    kernel = KernelManager(kernel_name="python3")
    assert kernel.kernel_spec is not None
    kernel.kernel_spec.argv[0] = forked_python()
    kernel.start_kernel(cwd=str(directory), env={**environment(), "JAX_PLATFORMS": "cpu"})
    try:
        yield {name: _run(name, kernel, directory, project) for name in ORDER}
    finally:
        kernel.shutdown_kernel(now=True)
        kernel.cleanup_resources()


def _run(name: str, kernel: KernelManager, directory: Path, project: Path) -> list[Any]:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    if name == "classifier":  # on the user's own text, and too large for a test
        shutil.copytree(project / "text", directory / "own" / "text")
        notebook.cells[1].source = f"%cd -q {directory / 'own'}\n{notebook.cells[1].source}"
        for cell in notebook.cells:
            for old, new in CHANGES:
                if "workers" not in new:  # they are the script's
                    cell.source = cell.source.replace(old, new)
    for cell in notebook.cells:
        for old, new in FEWER:
            cell.source = cell.source.replace(old, new)
    client = NotebookClient(notebook, km=kernel, timeout=600)
    try:
        return client.execute().cells
    finally:
        client.kc.stop_channels()  # of this client; the kernel goes on


def test_every_notebook_runs(outputs: dict[str, Any]) -> None:
    last = {name: _text(cells) for name, cells in outputs.items()}
    assert re.search(r"\('(sleeps|eats|waits|hides)', 0\.\d+\)", last["pretrain"])
    assert "accuracy" in last["finetune"]
    assert "(2, 32)" in last["use"]
    assert "exported" in last["use"]
    assert re.search(r"^[541]$", last["classifier"], re.MULTILINE)


def test_progress_is_one_block_of_html_in_the_output_of_a_cell(outputs: dict[str, Any]) -> None:
    (cell,) = [cell for cell in outputs["pretrain"] if "bert_jax.pretrain(" in cell.source]
    shown = [output for output in cell.outputs if "text/html" in output.get("data", {})]
    assert len(shown) == 1, cell.outputs
    html = shown[0]["data"]["text/html"]
    assert re.search(r"step 1 of 60: done after", html)
    assert re.search(r"step 60 validation: loss", html)
    assert "done: 60 steps" in html
    assert "…" not in html.rpartition("<pre")[2]  # the live line is gone
    assert not [output for output in cell.outputs if output.output_type == "stream"]


def test_the_notebook_from_text_to_a_classifier_is_the_script_of_the_documentation() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    found = re.search(r'^```python title="classifier.py"\n(.*?)^```$', page, re.M | re.S)
    notebook = nbformat.read(NOTEBOOKS / "classifier.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert found is not None
    lines = [line for line in found[1].splitlines() if line]
    assert [line for source in code for line in source.splitlines() if line] == lines
    assert len(lines) <= 20


def _text(cells: list[Any]) -> str:
    """Returns all that the cells show, as plain text."""
    return "\n".join(
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for cell in cells
        for output in cell.get("outputs", [])
    )
