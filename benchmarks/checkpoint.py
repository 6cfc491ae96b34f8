"""Times a checkpoint: stall and total time of a save, verification, restoring.

    python -m benchmarks.checkpoint [--size L4H256] [--saves N] [--directory DIR]

The checkpoint has parameters and two moments in float32. The stall is the time for which `save`
blocks the caller. A separate metric is the manifest's share of the total time. Verifying reads from
the page cache, so it measures the cost of the checksums.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import jax
import optax
from etils import epath

from benchmarks.report import report
from benchmarks.train_step import architecture, layers_and_width
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.checkpoint_manifest import read_manifest, write_manifest
from bert_jax.train.checkpoint_retention import CheckpointDirectory
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import TrainState, abstract_state, define_model, draw_params, initialise
from tests.support import small_task

SECTION = CheckpointSection(keep_last=2)


def main() -> None:
    """Measures one size and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--size", type=layers_and_width, default=(4, 256))
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="directory; default: a temporary one")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="bert_jax_checkpoint_"))
    try:
        measure(
            architecture("bert", *arguments.size), directory / "checkpoints", saves=arguments.saves
        )
    finally:
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)


def measure(size: EncoderArchitecture, directory: Path, *, saves: int) -> None:
    """Saves, verifies and restores checkpoints, and reports the medians."""
    state, abstract = make_state(size)
    stalls, wholes = [], []
    with Checkpointer(directory, SECTION) as checkpoints:
        for step in range(1, saves + 2):
            start = time.perf_counter()
            checkpoints.save(state, step=step, progress={"step": step})
            stalls.append(time.perf_counter() - start)
            checkpoints.wait()
            wholes.append(time.perf_counter() - start)
    last = epath.Path(directory) / str(saves + 1)
    manifest = read_manifest(last, step=saves + 1)
    size_gb = sum(record.size for record in manifest.files.values()) / 1e9
    start = time.perf_counter()
    write_manifest(last, step=saves + 1, score=None, params=None)
    hashed = time.perf_counter() - start
    start = time.perf_counter()
    problem = CheckpointDirectory(epath.Path(directory), say=print).problem(saves + 1)
    verified = time.perf_counter() - start
    if problem is not None:
        raise RuntimeError(f"checkpoint {saves + 1}: {problem}")
    with Checkpointer(directory, SECTION, read_only=True) as checkpoints:
        checkpoints.on_disk.problem(saves + 1)  # verify before the clock starts
        start = time.perf_counter()
        jax.block_until_ready(checkpoints.restore_state(abstract, step=saves + 1))
        restored = time.perf_counter() - start
    facts = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "gigabytes": round(size_gb, 4),
        "saves": saves,
        "packages": ["jax", "orbax-checkpoint"],
    }
    # The first save creates threads and directories; later saves reuse them.
    report("checkpoint.stall", statistics.median(stalls[1:]), "s/save", **facts)
    report("checkpoint.whole", statistics.median(wholes[1:]), "s/save", **facts)
    report("checkpoint.manifest", hashed, "s/save", **facts)
    report("checkpoint.verify", verified / size_gb, "s/GB", **facts)
    report("checkpoint.restore", restored, "s", **facts)


def make_state(size: EncoderArchitecture) -> tuple[TrainState, TrainState]:
    """Returns a fresh state on one device, and its abstract counterpart."""
    task = small_task(**size.model_dump())
    model, optimizer = define_model(task.build), optax.scale_by_adam()
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])
    abstract = abstract_state(model, optimizer, mesh)
    params = draw_params(model, abstract.params, seed=0)
    return jax.block_until_ready(initialise(params, optimizer, abstract, seed=0)), abstract


if __name__ == "__main__":
    main()
