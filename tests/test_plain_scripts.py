"""A script without the ``if __name__ == "__main__":`` guard, or a notebook, is run once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.project import ROOT, environment

SCRIPT = """
print("the script runs")
from bert_jax.pipelines.engines.local import WorkerPool

with WorkerPool(2) as pool:
    print(sorted(found for _, found in pool.run(len, ["a", "bb"])))

from tests.data.memory_dataset import LoaderSection, MemoryDataset, make_loader

loader = make_loader(MemoryDataset(64), batch_size=8, section=LoaderSection(workers=1))
with loader.batches(first_step=0) as batches:
    print(len(next(batches)["input_ids"]))
"""


def test_workers_do_not_run_the_script_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=environment(),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the script runs", "[1, 2]", "8"]
