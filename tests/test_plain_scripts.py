"""A script without the ``__main__`` guard runs once, from text to a classifier."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.project import ROOT, environment

pytestmark = pytest.mark.slow

# Without dropout, a step compiles in half the time.
SMALL = """{"architecture": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0}}"""
# Replacements that make the script smaller and use worker processes wherever possible.
CHANGES = (
    ('"steps": 500', '"steps": 3'),
    ('"batch_size": 32', '"batch_size": 8'),
    ('"max_seq_length": 64,', '"max_seq_length": 64, "workers": 2, "dupe_factor": 1,'),
    ('"run_dir": "runs/small",', '"run_dir": "runs/small", "loader": {"workers": 1},'),
    ('write_python_docs("corpus")', 'write_python_docs("corpus", max_bytes=250_000)'),
    ('"size": 2000', '"size": 640'),
    ('{"size": "tiny"}', SMALL),
    # A small model needs more and larger steps, and a sentence similar to its training data.
    ('"epochs": 20', '"epochs": 20, "batch_size": 8'),
    ('"learning_rate": 1e-3', '"learning_rate": 3e-3'),
    ('"what a good book"', '"a good book"'),
)


def test_the_script_of_the_documentation_runs_once(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    found = re.search(r'^```python title="classifier.py"\n(.*?)^```$', page, re.M | re.S)
    assert found is not None
    text = found[1]
    lines = [line for line in text.splitlines() if line]
    assert len(lines) <= 20
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / "classifier.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert [line for source in code for line in source.splitlines() if line] == lines
    for old, new in CHANGES:
        assert old in text, old
        text = text.replace(old, new)
    (tmp_path / "classifier.py").write_text(f"print('the script runs')\n{text}")
    done = subprocess.run(
        [sys.executable, "classifier.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("the script runs") == 1
    assert lines[-1] == "5"
    found = json.loads((tmp_path / "runs" / "stars" / "evaluation.json").read_text())
    assert found["failure"] is None, found
    assert found["scores"]["accuracy"] >= found["constant_score"] + 0.3
    order = [next(i for i, line in enumerate(lines) if re.search(each, line)) for each in TOLD]
    assert order == sorted(order), done.stdout
    assert "Traceback" not in done.stderr


# Patterns of lines that the script prints, in this order.
TOLD = (
    r"tokenised part 1 of",
    r"compiling the step \(8 × 64 tokens\) …",
    r"step 1 of 3: done after",
    r"^done: 3 steps$",
    r"^examples: train ",
    r"starts fresh",
    r"compiling the step \(8 × (?!64)\d+ tokens\) …",
    r"best: step ",
)
