"""A user's working directory may have folders with our packages' names."""

import subprocess
import sys
from pathlib import Path

from tests.corpus import write_corpus, write_tokenizer
from tests.project import ROOT, environment, write_config

OURS = ("pipelines", "configs", "tpu_setup", "benchmarks")


def test_working_directory_folders_do_not_hide_ours(tmp_path: Path) -> None:
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} of the user')\n")
    write_corpus(tmp_path / "text0.txt", documents=range(30))
    write_corpus(tmp_path / "text1.txt", documents=range(30, 60))
    write_tokenizer(tmp_path / "tokenizer")
    config = write_config(
        tmp_path / "run.yaml",
        {
            "examples": {
                "input": ["text*.txt"],
                "tokenizer": "tokenizer",
                "output": "dataset",
                "max_seq_length": 48,
                "validation_fraction": 0.2,
                "workers": 2,
            }
        },
    )
    # The working directory comes first on the path, but the installed package must be imported.
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.cli", "examples", str(config)],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dataset" / "provenance.json").exists()
