"""All of a corpus as runs on disk, its figures, and whether examples can be made of it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from etils import epath

from bert_jax.data.provenance import CorpusRecord
from bert_jax.errors import UserError
from pipelines.documents import FORMATS
from pipelines.pool import WorkerPool
from pipelines.settings import ExamplesSection
from pipelines.sources import Part, cut_file
from pipelines.tokenise import TokeniseJob, read_summary, tokenise_part

_MIN_PART_BYTES: Final = 2 << 20
_MAX_PART_BYTES: Final = 64 << 20
_MOST_PARTS: Final = 2048


def tokenise_corpus(
    section: ExamplesSection,
    *,
    paths: Sequence[str],
    names: Sequence[str],
    directory: pathlib.Path,
    pool: WorkerPool,
    say: Callable[[str], None],
) -> list[pathlib.Path]:
    """Makes the runs that are not in ``directory`` yet.

    Args:
        section: the settings.
        paths: the input files.
        names: their names below the input root.
        directory: where the runs go.
        pool: who does it.
        say: called with a line of text when a run is finished.

    Returns:
        The directories of all runs. Which documents share a run changes nothing in the dataset.
    """
    groups = _group(_cut(section, paths, names))
    runs = [directory / f"run-{number:05d}" for number in range(len(groups))]
    jobs = [
        TokeniseJob(
            parts=group,
            directory=str(run),
            tokenizer=section.tokenizer,
            layout=section.layout,
            documents=section.documents,
            language=section.language,
            max_line_length=section.max_line_length,
            validation_fraction=section.validation_fraction,
            seed=section.seed,
        )
        for group, run in zip(groups, runs, strict=True)
        if not run.exists()
    ]
    done = len(runs) - len(jobs)
    for summary in pool.run(tokenise_part, jobs):
        done += 1
        say(f"tokenised part {done} of {len(runs)}: {sum(summary.tokens.values()):,} tokens")
    return runs


def describe_corpus(runs: Sequence[pathlib.Path], *, unknown: int) -> CorpusRecord:
    """Adds up the figures of all runs.

    Args:
        runs: their directories.
        unknown: id of the unknown piece.

    Raises:
        UserError: there is no document with text.
    """
    summaries = [read_summary(run) for run in runs]
    counts = np.sum([np.load(run / "counts.npy") for run in runs], axis=0)
    total = int(counts.sum())
    if not total:
        raise UserError("input: no document in any of its files; allowed: at least 2 documents")
    return CorpusRecord(
        documents=sum(sum(summary.documents.values()) for summary in summaries),
        sentences=sum(summary.sentences for summary in summaries),
        tokens=total,
        unigram_entropy=unigram_entropy(counts),
        unknown_rate=int(counts[unknown]) / total,
    )


def unigram_entropy(counts: np.ndarray) -> float:
    """Returns the entropy of a distribution given by counts, in nats: ``[2, 2] -> 0.6931``."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def split_sizes(runs: Sequence[pathlib.Path], *, split: str) -> tuple[int, int]:
    """Returns the number of documents and of tokens of a split."""
    summaries = [read_summary(run) for run in runs]
    return sum(s.documents[split] for s in summaries), sum(s.tokens[split] for s in summaries)


def _cut(section: ExamplesSection, paths: Sequence[str], names: Sequence[str]) -> list[Part]:
    # A function of the corpus, so that a run that goes on finds the same parts on any machine.
    total = sum(epath.Path(path).stat().length for path in paths)
    part_bytes = min(max(_MIN_PART_BYTES, total // _MOST_PARTS), _MAX_PART_BYTES)
    is_gap = FORMATS[section.documents].is_gap
    return [
        part
        for path, name in zip(paths, names, strict=True)
        for part in cut_file(path, name, part_bytes=part_bytes, is_gap=is_gap)
    ]


def _group(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Puts the parts of small files together, until they are as large as a part of a large one."""
    groups: list[list[Part]] = []
    size = _MIN_PART_BYTES
    for part in parts:
        if size >= _MIN_PART_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return [tuple(group) for group in groups]
