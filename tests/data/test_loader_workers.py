"""The loader's workers: same batches, no accelerator, no process left behind."""

import itertools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import psutil
import pytest

from bert_jax.data.dataset.reader import Example, open_dataset
from bert_jax.data.loader.loader import Loader
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import RunStopped, UserError
from bert_jax.task import RowTransform
from bert_jax.text import load_tokenizer
from tests.corpus import make_dataset
from tests.data.memory_dataset import (
    SEQ_LENGTH,
    Batch,
    MemoryDataset,
    assert_equal,
    make_loader,
    take,
)


class WorkerRow:
    """A row that tells of the process that made it."""

    seq_length = SEQ_LENGTH

    max_predictions = 0
    max_examples = 1

    def packed(self, max_examples: int) -> RowTransform:
        raise NotImplementedError

    def batch(
        self, records: Sequence[Sequence[Example]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Batch:
        jax_platforms, initialised = jax_state()
        interrupts = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        return {
            "draw": np.array([rng.integers(2**31, size=4) for (rng,) in rngs]),
            "pid": np.full(len(records), os.getpid()),
            "on_cpu": np.full(len(records), jax_platforms == "cpu"),
            "initialised": np.full(len(records), initialised),
            "leaves_interrupts": np.full(len(records), interrupts),
        }

    def fingerprint(self) -> dict[str, str | int | float]:
        return {"seq_length": self.seq_length}


def jax_state() -> tuple[str | None, bool]:
    """What this process's JAX would run on, and whether it has started any backend."""
    from jax import config
    from jax._src import xla_bridge

    return config.jax_platforms, xla_bridge.backends_are_initialized()


def test_workers_change_nothing_and_touch_no_accelerator(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)  # a worker is not to inherit its safety
    dataset = MemoryDataset(37)
    expected = take(make_loader(dataset, batch_size=8, transform=WorkerRow()), 5, first_step=3)
    section = LoaderSection(workers=2)
    loader = make_loader(dataset, batch_size=8, transform=WorkerRow(), section=section)
    batches = take(loader, 5, first_step=3)
    assert multiprocessing.active_children() == []
    for batch, reference in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(batch["draw"], reference["draw"])
        assert batch["on_cpu"].all()
        assert batch["leaves_interrupts"].all()
        assert not batch["initialised"].any()
        assert type(batch["draw"]) is np.ndarray
    assert len({int(batch["pid"][0]) for batch in batches} - {os.getpid()}) == 2


def test_a_worker_reads_the_dataset_on_disk_and_is_gone_once_the_loader_is_closed(tmp_path):
    make_dataset(tmp_path)
    transform = MaskingTransform.from_tokenizer(
        load_tokenizer(tmp_path / "tokenizer"),
        seq_length=48,
        masking=MaskingSection(unit="whole_word"),
    )
    batches = []
    for workers in (0, 1):
        loader = Loader(
            open_dataset(tmp_path / "dataset", "train"),
            transform,
            batch_size=32,
            seed=7,
            section=LoaderSection(workers=workers),
        )
        with loader.batches(first_step=2) as opened:
            batches.append(list(itertools.islice(opened, 3)))
            assert len(multiprocessing.active_children()) == workers
    assert multiprocessing.active_children() == []
    for ours, workers_batch in zip(*batches, strict=True):
        assert_equal(ours, workers_batch)


def test_a_workers_error_reaches_the_caller_and_ends_the_other_workers():
    section = LoaderSection(workers=2)
    dataset = MemoryDataset(8, damaged=5)
    batches = make_loader(dataset, batch_size=8, section=section).batches(first_step=0)
    with pytest.raises(UserError, match="train-00003: damaged shard"):
        next(batches)
    assert multiprocessing.active_children() == []


def test_a_killed_worker_is_an_error_and_no_hang():
    section = LoaderSection(workers=1)
    with make_loader(MemoryDataset(8), batch_size=8, section=section).batches(
        first_step=0
    ) as batches:
        next(batches)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(RunStopped, match=r"fewer loader\.workers"):
            list(itertools.islice(batches, 10))


SCRIPT = """
import multiprocessing, time
from tests.data.memory_dataset import LoaderSection, MemoryDataset, make_loader

if __name__ == "__main__":
    loader = make_loader(MemoryDataset(64), batch_size=8, section=LoaderSection(workers=1))
    batches = loader.batches(first_step=0)
    next(batches)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    {then}
"""


@pytest.fixture
def run_script(tmp_path) -> Callable[..., subprocess.Popen]:
    def run(then: str) -> subprocess.Popen:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(then=then))
        paths = [str(pathlib.Path(__file__).parents[2]), *sys.path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, env=environment, text=True
        )

    return run


def wait_until_gone(pids: list[int], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_workers_end_with_a_killed_parent(run_script):
    process = run_script("time.sleep(600)")
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert pids
    process.kill()
    process.wait()
    assert wait_until_gone(pids)
    process.stdout.close()


def test_a_program_that_forgets_to_close_still_ends(run_script):
    process = run_script("pass")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert wait_until_gone([int(pid) for pid in output.split()])
