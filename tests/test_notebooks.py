"""The notebooks of the documentation run in a Jupyter kernel and show progress as HTML."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.project import ROOT, environment

pytestmark = pytest.mark.slow

NOTEBOOKS = ROOT / "docs" / "notebooks"
# Each notebook uses the results of the previous one, so they share a folder and a kernel.
# test_plain_scripts.py runs the code of "classifier".
ORDER = ("pretrain", "finetune", "use")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the notebooks."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def outputs(directory: Path) -> Iterator[dict[str, Any]]:
    """Runs the notebooks; returns the cells of each."""
    kernel = KernelManager(kernel_name="python3")
    assert kernel.kernel_spec is not None
    kernel.kernel_spec.argv[0] = sys.executable
    kernel.start_kernel(cwd=str(directory), env={**environment(), "JAX_PLATFORMS": "cpu"})
    try:
        yield {name: _run(name, kernel) for name in ORDER}
    finally:
        kernel.shutdown_kernel(now=True)
        kernel.cleanup_resources()


# Use a model that compiles in half the time.
SMALLER = (
    '"num_hidden_layers": 2',
    '"num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0',
)


def _run(name: str, kernel: KernelManager) -> list[Any]:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(*SMALLER)
    client = NotebookClient(notebook, km=kernel, timeout=600)
    try:
        return client.execute().cells
    finally:
        client.kc.stop_channels()  # the kernel keeps running


def test_every_notebook_runs_in_one_folder(outputs: dict[str, Any]) -> None:
    last = {name: _text(cells) for name, cells in outputs.items()}
    assert re.search(r"\('(sleeps|eats|waits|hides)', 0\.\d+\)", last["pretrain"])
    assert "accuracy" in last["finetune"]
    assert "(2, 32)" in last["use"]
    assert "exported" in last["use"]


def test_the_notebooks_fine_tuning_learns(outputs: dict[str, Any], directory: Path) -> None:
    del outputs  # the fixture runs the notebooks
    found = json.loads((directory / "runs" / "hunter" / "evaluation.json").read_text())
    assert found["failure"] is None, found
    assert found["scores"]["accuracy"] >= found["constant_score"] + 0.3


def test_progress_is_one_html_block_per_cell(outputs: dict[str, Any]) -> None:
    (cell,) = [cell for cell in outputs["pretrain"] if "bert_jax.pretrain(" in cell.source]
    assert not [output for output in cell.outputs if output.output_type == "stream"]
    shown = [
        output["data"]["text/html"] for output in cell.outputs if "text/html" in output["data"]
    ]
    assert len(shown) == 1, cell.outputs
    html = shown[0]
    assert re.search(r"step 1 of 150: done after", html)
    assert re.search(r"step 150 validation: loss", html)
    assert "done: 150 steps" in html
    assert "…" not in html  # the live line was removed


def _text(cells: list[Any]) -> str:
    """Returns the cells' outputs as plain text."""
    return "\n".join(
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for cell in cells
        for output in cell.get("outputs", [])
    )
