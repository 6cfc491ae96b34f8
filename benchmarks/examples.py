"""Times `bert-jax examples` with one and two workers, on texts of about 20 MB and 200 MB.

    python -m benchmarks.examples [--text FILE --vocab FILE] [--release-script PATH]

Prints one JSON line per metric: examples per second of wall time and of CPU time, megabytes per
second, peak memory of every process, bytes per example. The text is copied until it has about 20 MB
(1×) or 200 MB (10×). Document ids contain the position in the file, so copies have different ids.
Without arguments the text is this Python's own documentation, and the vocabulary is trained on it.

``--release-script`` is google-research/bert's `create_pretraining_data.py`. It is timed alternately
with ours at 1×, with the same text and vocabulary. It needs TensorFlow and `tokenization.py` in its
folder.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from etils import epath

from benchmarks.release_script import (
    DUPE_FACTOR,
    PEER,
    SEQ_LENGTH,
    release_command,
    tensorflow,
)
from benchmarks.report import median_ratio, report
from benchmarks.watched import Watched, watch
from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.pipelines.python_docs import write_python_docs
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.text import load_wordpiece

WORKERS = (1, 2)
TIMES = (1, 10)
PACKAGES = ("array_record", "numpy", "tokenizers")

_OURS = "from bert_jax.cli import main; main()"


def main() -> None:
    """Measures and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--text", type=Path, help="a sentence per line, blank lines between documents"
    )
    parser.add_argument("--vocab", type=Path, help="uncased vocab.txt")
    parser.add_argument("--megabytes", type=float, default=20, help="size of the text at 1×")
    parser.add_argument("--times", type=int, nargs="+", default=TIMES, help="of 1×")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--rounds", type=int, default=1, help="timed runs per side")
    parser.add_argument("--release-script", type=Path, help="create_pretraining_data.py")
    arguments = parser.parse_args()
    if arguments.release_script is None:
        print("skipping the peer; give it with --release-script", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bert_jax_examples_") as scratch:
        root = Path(scratch)
        text = arguments.text or python_docs(root)
        if arguments.vocab is None:
            train_vocab(VocabSection(input=(str(text),), output=str(root / "tokenizer"), size=8192))
        else:
            load_wordpiece(arguments.vocab, lower_case=True).save(root / "tokenizer")
        size = text.stat().st_size
        copies = math.ceil(arguments.megabytes * 1e6 / size)
        texts = {times: repeat(text, root, copies=copies * times) for times in arguments.times}
        measure(
            texts,
            root / "tokenizer",
            workers=arguments.workers,
            rounds=arguments.rounds,
            script=arguments.release_script,
        )


def python_docs(root: Path) -> Path:
    """Writes this Python's documentation as one file."""
    parts = [path.read_text(encoding="utf-8") for path in write_python_docs(root / "docs")]
    path = root / "python.txt"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def repeat(text: Path, root: Path, *, copies: int) -> Path:
    """Writes several copies of a text, with a blank line after each copy."""
    path = root / f"{copies}_copies.txt"
    with path.open("wb") as file:
        for _ in range(copies):
            file.write(text.read_bytes().rstrip() + b"\n\n")
    return path


def measure(
    texts: dict[int, Path], tokenizer: Path, *, workers: list[int], rounds: int, script: Path | None
) -> None:
    """Runs our command and the script alternately and reports their metrics."""
    taken: dict[tuple[int, int], list[Watched]] = {}
    theirs: list[Watched] = []
    made: dict[int, tuple[int, int]] = {}
    released = (0, 0)
    for _ in range(rounds):
        if script is not None:
            smallest = texts[min(texts)]
            watched, released = run_release(script, smallest, tokenizer / "vocab.txt")
            theirs.append(watched)
        for times, text in texts.items():
            for count in workers:
                watched, made[times] = run_ours(text, tokenizer, workers=count)
                taken.setdefault((times, count), []).append(watched)
    for (times, count), runs in taken.items():
        report_runs(runs, texts[times], *made[times], times=times, workers=count)
    if script is not None:
        times = min(texts)
        report_runs(theirs, texts[times], *released, times=times, workers=1, peer=PEER)
        for count in workers:
            report_ratios(taken[times, count], theirs, made[times][0] / released[0], workers=count)
    report_growth(taken, workers=workers)


def run_ours(text: Path, tokenizer: Path, *, workers: int) -> tuple[Watched, tuple[int, int]]:
    """Runs `bert-jax examples`. Returns its costs, the number of examples and their bytes."""
    with tempfile.TemporaryDirectory(dir=text.parent) as scratch:
        config = Path(scratch) / "run.yaml"
        section = {
            "input": [str(text)],
            "tokenizer": str(tokenizer),
            "output": f"{scratch}/dataset",
            "max_seq_length": SEQ_LENGTH,
            "dupe_factor": DUPE_FACTOR,
            "workers": workers,
        }
        config.write_text(json.dumps({"examples": section}))  # JSON is valid YAML
        watched = watch([sys.executable, "-c", _OURS, "examples", str(config)])
        splits = read_provenance(f"{scratch}/dataset").splits.values()
        examples = sum(split.examples for split in splits)
        size = sum(shard.bytes for split in splits for shard in split.shards)
    return watched, (examples, size)


def run_release(script: Path, text: Path, vocabulary: Path) -> tuple[Watched, tuple[int, int]]:
    """Runs the script. Returns its costs, the number of examples and their bytes."""
    with tempfile.TemporaryDirectory(dir=text.parent) as scratch:
        output = Path(scratch) / "examples.tfrecord"
        watched = watch(
            release_command(script, text=text, vocabulary=vocabulary, output=output, seed=12345)
        )
        examples = sum(1 for _ in scan_records(epath.Path(output)))
        return watched, (examples, output.stat().st_size)


def report_runs(
    runs: list[Watched],
    text: Path,
    examples: int,
    size: int,
    *,
    times: int,
    workers: int,
    peer: str | None = None,
) -> None:
    """Reports medians and the highest memory peak of repeated runs."""
    megabytes = text.stat().st_size / 1e6
    facts: dict[str, Any] = {
        "peer": peer,
        "times": times,
        "workers": workers,
        "megabytes": round(megabytes, 2),
        "examples": examples,
        "packages": tensorflow() if peer else PACKAGES,
    }
    wall = statistics.median(run.seconds for run in runs)
    cpu = statistics.median(run.cpu_seconds for run in runs)
    report("examples.per_second", examples / wall, "examples/s", **facts)
    report("examples.per_core_second", examples / cpu, "examples/s", **facts)
    report("examples.megabytes_per_second", megabytes / wall, "MB/s", **facts)
    report("examples.bytes_per_example", size / examples, "bytes", **facts)
    highest = peaks_of(runs)
    report("examples.peak_memory", max(highest.values()), "MiB", **facts, processes=highest)


def report_ratios(
    ours: list[Watched], theirs: list[Watched], examples: float, *, workers: int
) -> None:
    """Reports our examples per second divided by the script's.

    Args:
        ours: runs of our command.
        theirs: runs of the script, alternating with ours.
        examples: our number of examples divided by the script's.
        workers: number of workers of our command.
    """
    facts: dict[str, Any] = {"peer": PEER, "workers": workers, "packages": PACKAGES}
    for name, field in (("ratio", "seconds"), ("core_ratio", "cpu_seconds")):
        spent = ([getattr(run, field) for run in runs] for runs in (theirs, ours))
        report(f"examples.{name}", median_ratio(*spent) * examples, "x", **facts)


def peaks_of(runs: list[Watched]) -> dict[str, float]:
    """Returns the highest peak of each process over several runs."""
    names = {name: None for run in runs for name in run.peaks}
    return {name: max(run.peaks.get(name, 0.0) for run in runs) for name in names}


def report_growth(taken: dict[tuple[int, int], list[Watched]], *, workers: list[int]) -> None:
    """Reports the speed-up by more workers, and the growth of memory with the size of the text."""
    sizes = sorted({times for times, _ in taken})
    facts: dict[str, Any] = {"packages": PACKAGES}
    for times in sizes:
        if len(workers) > 1:
            one, more = (
                statistics.median(run.seconds for run in taken[times, count])
                for count in (min(workers), max(workers))
            )
            report(
                "examples.scaling",
                one / more,
                "x",
                times=times,
                workers=[min(workers), max(workers)],
                **facts,
            )
    if len(sizes) < 2:
        return
    for count in workers:
        small, large = (by_role(peaks_of(taken[times, count])) for times in (sizes[0], sizes[-1]))
        for role, peak in small.items():
            report(
                "examples.memory_growth",
                large[role] / peak,
                "x",
                times=[sizes[0], sizes[-1]],
                workers=count,
                process=role,
                **facts,
            )


def by_role(peaks: dict[str, float]) -> dict[str, float]:
    """Returns the highest peak per role: ``{"worker 1": 3, "worker 2": 4} -> {"worker": 4}``."""
    highest: dict[str, float] = {}
    for name, peak in peaks.items():
        role = name.split()[0]
        highest[role] = max(highest.get(role, 0.0), peak)
    return highest


if __name__ == "__main__":
    main()
