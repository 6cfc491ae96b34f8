"""Tests that every engine, number of workers and interruption gives the same bytes."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bert_jax.errors import RunStopped
from bert_jax.pipelines.engines.beam import BeamEngine, BeamSection
from bert_jax.pipelines.engines.local import WorkerPool
from bert_jax.pipelines.examples import ExamplesSection, make_examples
from tests.corpus import hashes, section, sentences, write_corpus, write_tokenizer
from tests.project import environment, refused, refuses, says, write_config

ROOT = Path(__file__).parents[2]

# These rules compare documents, so every stage runs.
CLEANING = {"duplicate_documents": True, "near_duplicates": {}, "duplicate_lines": "corpus"}

PROGRAM = """
import sys
import bert_jax.pipelines.tokenised.corpus
from bert_jax.pipelines.examples import ExamplesSection, make_examples
if __name__ == "__main__":
    bert_jax.pipelines.tokenised.corpus._MIN_PART_BYTES = 4000
    make_examples(ExamplesSection.model_validate_json(sys.argv[1]), progress=print)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with four files of two languages, a tokenizer, and their dataset.

    Some documents are in several files. One process makes the dataset in one part.
    """
    directory = tmp_path_factory.mktemp("corpus")
    for number in range(4):
        write_corpus(
            directory / f"text{number}.txt", documents=range(25 * number, 25 * number + 40)
        )
    with (directory / "text3.txt").open("a") as file:
        file.write("\n".join(["", *sentences(3), ""]))
    write_tokenizer(directory / "tokenizer")
    make_examples(wanted(directory))
    return directory


def wanted(corpus: Path, **changes: Any) -> ExamplesSection:
    files = {"de": (f"{corpus}/text3.txt",), "en": (f"{corpus}/text[012].txt",)}
    return section(corpus, **({"cleaning": CLEANING, "input": files, "mixture": {}} | changes))


def run(settings: ExamplesSection) -> list[str]:
    """Makes a dataset in many parts and returns the lines of progress."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.pipelines.tokenised.corpus._MIN_PART_BYTES", 4000)
        make_examples(settings, progress=lines.append)
    return lines


def assert_same(settings: ExamplesSection, corpus: Path) -> None:
    """Asserts that a dataset equals the fixture's dataset."""
    made = hashes(Path(settings.output))
    assert made == hashes(corpus / "dataset")
    assert {"provenance.json", "dataset_info.json", "features.json"} <= made.keys()


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_and_parts_gives_the_same_bytes(
    corpus: Path, tmp_path: Path, workers: int
) -> None:
    settings = wanted(corpus, workers=workers, output=str(tmp_path / "dataset"))
    lines = run(settings)
    assert_same(settings, corpus)
    parts = [line for line in lines if line.startswith("tokenised part")]
    assert len(parts) > 10
    assert all(" MB/s" in line for line in parts)
    assert parts[0].endswith(" left")
    assert not parts[-1].endswith(" left")


def meant(name: str) -> str:
    return f'; did you mean "{name}"?'


IN_MEMORY = ("--direct_running_mode=in_memory", "--direct_num_workers=1")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.chaos)])
def test_beam_gives_the_same_bytes(corpus: Path, tmp_path: Path, workers: int | None) -> None:
    beam = BeamSection(options=() if workers else IN_MEMORY)
    output = str(tmp_path / "dataset")
    settings = wanted(corpus, engine="beam", workers=workers, beam=beam, output=output)
    run(settings)
    assert_same(settings, corpus)


@pytest.mark.slow
def test_a_users_mistake_in_a_beam_worker_is_one_line(corpus: Path, tmp_path: Path) -> None:
    bad = tmp_path / "text.txt"
    size = bad.write_bytes((corpus / "text0.txt").read_bytes())
    with bad.open("ab") as file:
        file.write(b"f\xfcr\n")
    settings = wanted(
        corpus,
        input=(str(bad),),
        mixture=None,
        engine="beam",
        workers=None,
        beam=BeamSection(options=IN_MEMORY),
        output=str(tmp_path / "dataset"),
    )
    config = write_config(tmp_path / "run.yaml", {"examples": settings.model_dump(mode="json")})
    line = refused("examples", config)
    assert line.key == "text.not_utf8"
    says(line, place=str(bad), byte=size + 1)
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("name", "value", "workers", "key", "values"),
    [
        ("runner", "DirektRunner", None, "beam.runner", {"hint": meant("DirectRunner")}),
        ("runner", "nowhere.Runner", None, "beam.runner_import", {"found": "nowhere.Runner"}),
        ("runner", "DaskRunner", 3, "beam.workers_ignored", {"place": "workers", "found": 3}),
        ("options", "--direct_num_workers=2", 3, "beam.workers_twice", {"place": "workers"}),
        (
            *("options", "--direct_num_worker=2", None, "beam.option_unknown"),
            {"found": "--direct_num_worker", "hint": meant("--direct_num_workers")},
        ),
        ("options", "--direct_num_workers=two", None, "beam.option", {}),
        ("options", "--project=$NOT_THERE", None, "beam.environment", {"found": "$NOT_THERE"}),
        ("options", "--runner=FlinkRunner", None, "beam.runner_option", {}),
        ("options", "--db_password=hello", None, "beam.secret", {"found": "--db_password"}),
    ],
)
def test_impossible_beam_settings_are_named(
    tmp_path: Path, name: str, value: str, workers: int | None, key: str, values: dict[str, Any]
) -> None:
    beam: dict[str, Any] = {name: (value,) if name == "options" else value}
    values = {"place": f"examples.beam.{name}"} | values
    with refuses(key, **values):
        BeamEngine(BeamSection(**beam), workers=workers, directory=tmp_path)


def test_a_runner_of_the_standard_library_is_refused(tmp_path: Path) -> None:
    with refuses("function.standard_library", place="examples.beam.runner", found="os.system"):
        BeamEngine(BeamSection(runner="os.system"), workers=None, directory=tmp_path)


def die(job: int) -> None:
    """Kills its own process, as the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_killed_by_the_system_is_one_line() -> None:
    killed = refuses("examples.worker_killed", kind=RunStopped, workers=2)
    with WorkerPool(2) as pool, killed:
        list(pool.run(die, [1, 2]))


@pytest.mark.chaos
def test_beam_on_a_cluster_gives_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    """The scheduler and two workers are local processes with another working directory."""
    where = tmp_path / "scheduler.json"
    common = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(where)]
    worker = ["worker", "--nthreads", "1", "--no-nanny"]
    settings = wanted(
        corpus,
        engine="beam",
        workers=None,
        input={"de": ("text3.txt",), "en": ("text[012].txt",)},
        tokenizer="tokenizer",
        beam=BeamSection(runner="DaskRunner", options=(f"--dask_scheduler_file={where}",)),
        output=str(tmp_path / "dataset"),
    )
    with contextlib.ExitStack() as stack:
        for number, (name, *options) in enumerate((["scheduler", "--port", "0"], worker, worker)):
            log = stack.enter_context((tmp_path / f"{number}.log").open("w"))
            command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *options, *common]
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment(), stdout=log, stderr=log
            )
            stack.callback(process.wait, timeout=30)
            stack.callback(process.kill)
        command = [sys.executable, "-c", PROGRAM, settings.model_dump_json()]
        subprocess.run(command, cwd=corpus, env=environment(), check=True, timeout=240)
    logs = [(tmp_path / f"{number}.log").read_text() for number in range(3)]
    assert_same(settings, corpus)
    assert logs[0].count("Register worker addr") == 2, logs


def test_missing_results_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Imitates workers that do not share this machine's disk.
    monkeypatch.setattr("bert_jax.pipelines.engines.beam.do_job", lambda element: None)
    with (
        BeamEngine(BeamSection(options=IN_MEMORY), workers=None, directory=tmp_path) as engine,
        refuses("beam.no_result", place=tmp_path, missing=2, jobs=2),
    ):
        list(engine.run(len, ["a", "b"]))


def killed_after(settings: ExamplesSection, line: str, *, alone: bool) -> None:
    """Starts a run, waits for a line and kills the run. If ``alone``, workers are not killed."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, settings.model_dump_json()],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        for said_line in process.stdout:
            if said_line.startswith(line):
                break
        workers = psutil.Process(process.pid).children(recursive=True)
        time.sleep(random.uniform(0, 0.02))
        (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []


@pytest.mark.slow
def test_a_run_killed_at_any_stage_gives_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    settings = wanted(corpus, workers=2, output=str(tmp_path / "dataset"))
    killed_after(settings, "cleaned part 2 ", alone=False)
    killed_after(settings, "tokenised part 5 ", alone=True)
    killed_after(settings, "shard 1 ", alone=False)
    assert not (tmp_path / "dataset").exists()
    run(settings)
    assert_same(settings, corpus)
