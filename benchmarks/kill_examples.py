"""Kills ``bert-jax examples`` at random times, runs it again, and compares the bytes.

    python -m benchmarks.kill_examples [--points 20] [--engine beam] [--parent-only]

The corpus is the installed Python's own documentation, with every document four times. The first
dataset is made without interruption, with three rules that compare documents, several shards and
two workers. Then, ``--points`` times, the command is started, killed and run again. By default, its
workers are killed too. With ``--parent-only`` they stay alive for a moment. Prints how many
datasets equal the first dataset byte by byte.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.report import report
from bert_jax.pipelines.python_docs import write_python_docs
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab

COPIES = 4


def main() -> None:
    """Prints a line for each kill, and one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--points", type=int, default=20, help="number of kills")
    parser.add_argument("--engine", choices=["local", "beam"], default="local")
    parser.add_argument("--parent-only", action="store_true", help="kill only the parent process")
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill times")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill_examples_") as folder:
        directory = Path(folder)
        command = [sys.executable, "-m", "bert_jax.cli", "examples", str(write_run(directory))]
        command.append(f"examples.engine={arguments.engine}")
        run_whole(command)
        whole = files(directory / "dataset")
        shutil.rmtree(directory / "dataset")
        seconds = run_whole(command)  # warm: files to import are in the page cache
        draw = random.Random(arguments.seed)
        found, stages = Counter(), Counter()
        for point in range(arguments.points):
            shutil.rmtree(directory / "dataset")
            # One random time in each of `points` equal intervals of the run.
            after = seconds * (point + draw.random()) / arguments.points
            while not run_and_kill(command, after=after, parent_only=arguments.parent_only):
                shutil.rmtree(directory / "dataset")
                after *= 0.95  # the run ended too early to be killed
            stage = stage_of(directory)
            run_whole(command)
            same = files(directory / "dataset") == whole
            found[same] += 1
            stages[stage] += 1
            print(f"{after:.1f} s, {stage}: {'identical' if same else 'DIFFERENT'}", flush=True)
    report(
        "examples.killed_and_run_again",
        found[True],
        "identical datasets",
        points=arguments.points,
        engine=arguments.engine,
        killed="parent" if arguments.parent_only else "all processes",
        stages=dict(stages),
        seconds=round(seconds, 1),
        files=len(whole),
    )
    if found[False]:
        sys.exit(1)


def write_run(directory: Path) -> Path:
    """Writes a corpus, a tokenizer and the configuration of a run."""
    text = directory / "text"
    for path in write_python_docs(text):
        for copy in range(1, COPIES):
            shutil.copy(path, text / f"{path.stem}_{copy}.txt")
    tokenizer = directory / "tokenizer"
    train_vocab(VocabSection(input=(f"{text}/*.txt",), output=str(tokenizer), size=4096))
    examples = {
        "input": [f"{text}/*.txt"],
        "tokenizer": str(tokenizer),
        "output": str(directory / "dataset"),
        "cleaning": {
            "duplicate_documents": True,
            "near_duplicates": {},
            "duplicate_lines": "corpus",
        },
        "max_seq_length": 128,
        "dupe_factor": 20,
        "num_shards": 6,
        "workers": 2,
    }
    config = directory / "run.yaml"
    config.write_text(yaml.safe_dump({"examples": examples}), encoding="utf-8")
    return config


def run_whole(command: Sequence[str]) -> float:
    """Runs a command to its end and returns the seconds."""
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def run_and_kill(command: Sequence[str], *, after: float, parent_only: bool) -> bool:
    """Starts a command and kills it.

    Args:
        command: program and arguments.
        after: seconds from the start to the kill.
        parent_only: kill only the parent process.

    Returns:
        Whether the command was killed before its end.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        if parent_only:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def stage_of(directory: Path) -> str:
    """Returns the stage at which the run was killed."""
    partial, work = directory / "dataset.partial", directory / "dataset.partial" / "work"
    if (directory / "dataset").exists():
        return "published"
    if not partial.exists():
        return "starting"
    if any(partial.glob("*.array_record-*")):
        return "writing shards" if work.exists() else "publishing"
    if any(work.glob("part-*")):
        return "tokenising"
    return "cleaning" if any(work.glob("spill-*")) else "starting"


def files(directory: Path) -> dict[str, str]:
    """Returns the hash of every file below a directory, by name."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    main()
