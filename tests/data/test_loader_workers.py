"""The loader's workers: equal batches, no accelerator, no processes left."""

import itertools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import psutil
import pytest

from bert_jax.data.dataset.reader import Example, open_dataset
from bert_jax.data.loader.loader import Loader
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import LoaderWorkerKilled
from bert_jax.text import load_tokenizer
from tests.corpus import make_dataset
from tests.data.memory_dataset import (
    Batch,
    MemoryDataset,
    assert_equal,
    make_loader,
    row_maker,
)
from tests.processes.hosts import start
from tests.project import refuses, write_config
from tests.run_config import one_phase

pytestmark = pytest.mark.slow


class WorkerRows(MaskingTransform):
    """Rows with additional arrays about the process that made them."""

    def batch(
        self, records: Sequence[Sequence[Example]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Batch:
        from jax import config
        from jax._src import xla_bridge

        facts = {
            "pid": os.getpid(),
            "on_cpu": config.jax_platforms == "cpu",
            "initialised": xla_bridge.backends_are_initialized(),
            "leaves_interrupts": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }
        arrays = {name: np.full(len(records), fact) for name, fact in facts.items()}
        return super().batch(records, rngs) | arrays


def test_workers_give_equal_batches_without_accelerators(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)  # otherwise, workers would inherit it
    make_dataset(tmp_path)
    tokenizer, masking = load_tokenizer(tmp_path / "tokenizer"), MaskingSection(unit="whole_word")
    transform = WorkerRows.from_tokenizer(tokenizer, seq_length=48, masking=masking)
    dataset = open_dataset(tmp_path / "dataset", "train")
    batches = []
    for workers in (0, 2):
        section = LoaderSection(workers=workers)
        loader = Loader(dataset, transform, batch_size=32, seed=7, section=section)
        with loader.batches(first_step=2) as opened:
            batches.append(list(itertools.islice(opened, 5)))
            assert len(multiprocessing.active_children()) == workers
    pids = set()
    for ours, theirs in zip(*batches, strict=True):
        assert theirs.pop("on_cpu").all()
        assert theirs.pop("leaves_interrupts").all()
        assert not theirs.pop("initialised").any()
        pids.add(int(theirs.pop("pid")[0]))
        assert_equal({name: ours[name] for name in theirs}, theirs)
    assert len(pids - {os.getpid()}) == 2


def test_a_workers_error_is_raised_and_ends_the_others():
    section = LoaderSection(workers=2)
    dataset = MemoryDataset(8, damaged=5)
    batches = make_loader(dataset, batch_size=8, section=section).batches(first_step=0)
    with refuses("dataset.shard_damaged", place="train-00003"):
        next(batches)
    assert multiprocessing.active_children() == []


class Unsendable:
    """A row for whose bytes the memory is too small."""

    def __reduce__(self) -> str:
        raise MemoryError


class UnsendableRows(MaskingTransform):
    def batch(
        self, records: Sequence[Sequence[Example]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Batch:
        return super().batch(records, rngs) | {"rows": np.array([Unsendable()], object)}


def test_no_batch_is_left_out_if_a_worker_cannot_send_it():
    rows = row_maker()
    loader = make_loader(
        MemoryDataset(8),
        batch_size=8,
        transform=UnsendableRows(rows.seq_length, rows.masker),
        section=LoaderSection(workers=1),
    )
    with (
        refuses("loader.worker_killed", kind=LoaderWorkerKilled),
        loader.batches(first_step=0) as b,
    ):
        next(b)


def test_a_killed_worker_ends_the_run_in_one_line(project, tmp_path):
    """A batch is larger than a pipe, so the worker is killed while it sends a batch."""
    values = one_phase(project, steps=4000, log_every=1, checkpoint={"every": 4000})
    values |= {"loader": {"workers": 2}, "mesh": {"platform": "cpu", "data": -1}}
    values["train"]["phases"][0]["batch_size"] = 512
    config = write_config(tmp_path / "run.yaml", values)
    run = tmp_path / "run"
    with start("pretrain", config, f"run_dir={run}", count=1, directory=tmp_path) as job:
        metrics = run / "metrics.jsonl"
        job.wait_until(lambda: metrics.exists() and '"train"' in metrics.read_text())
        children = psutil.Process(job[0].pid).children()
        workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        assert len(workers) == 2
        for worker in workers:
            worker.kill()
        assert job.wait() == [1], job.said()
        (line,) = (line for line in job[0].err.splitlines() if line.startswith("bert-jax: "))
    assert "[loader.worker_killed]" in line


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


def all_gone(pids: list[int]) -> bool:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def test_workers_end_with_a_killed_parent(run_script):
    process = run_script("time.sleep(600)")
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert pids
    process.kill()
    process.communicate()
    assert all_gone(pids)


def test_a_program_ends_without_closing_the_loader(run_script):
    process = run_script("pass")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert all_gone([int(pid) for pid in output.split()])
