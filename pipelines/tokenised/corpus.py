"""All of a corpus as runs on disk, its figures, and whether examples can be made of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.data.dataset.provenance import CorpusRecord
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_aside
from bert_jax.files.remote import each, load_array
from bert_jax.pipelines.cleaning.cleaned_documents import CorpusJob, corpus_documents
from bert_jax.pipelines.cleaning.contamination import build_index
from bert_jax.pipelines.cleaning.duplicates import SpillJob, find_duplicates, spill_part
from bert_jax.pipelines.cleaning.tally import Tally, is_made
from bert_jax.pipelines.engines.engine import Engine
from bert_jax.pipelines.progress import Progress
from bert_jax.pipelines.section import ExamplesSection, SourcesSection
from bert_jax.pipelines.sources.documents import document_key
from bert_jax.pipelines.sources.files import Part, absolute
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.sources import Source, cut_sources
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    concatenate,
    join_key,
    load_high_keys,
)
from bert_jax.pipelines.tokenised.tokenise import SPLITS, TokeniseJob, read_summary, tokenise_part

OVERLAP_INDEX: Final = "evaluation"
"""Directory of the evaluation sets' n-grams, below that of the runs."""

_MIN_PART_BYTES: Final = 1 << 20
_MAX_PART_BYTES: Final = 64 << 20
_MOST_PARTS: Final = 2048
_MEGABYTE: Final = 1e6


class Corpus(NamedTuple):
    """A corpus on disk, in the order of its sources."""

    runs: list[epath.Path]
    """Directories of its tokenised documents. Which documents share one changes nothing."""
    spills: list[epath.Path]
    """Directories in which its documents were set aside, if a rule looks across documents."""


def tokenise_corpus(
    section: ExamplesSection,
    *,
    sources: Sequence[Source],
    problems: Problems,
    directory: epath.Path,
    engine: Engine,
    say: Callable[[str], None],
) -> Corpus:
    """Makes the runs that are not in ``directory`` yet.

    Args:
        section: the settings.
        sources: the input.
        problems: gets the sources that cannot be read at all.
        directory: where the runs go.
        engine: who does it.
        say: called with a line of text when a run is finished.

    Raises:
        UserError: bad input, two documents with one id, a full disk.
    """
    groups = _groups(section, sources, problems)
    jobs = _corpus_jobs(section, [parts for _, parts in groups], directory)
    spills = list[epath.Path]()
    if section.cleaning.looks_across_documents:
        spills = _spill(jobs, directory=directory, engine=engine, say=say)
    runs = [directory / f"run-{number:05d}" for number in range(len(groups))]
    to_do = [
        TokeniseJob(
            corpus=job,
            spill=str(spills[number]) if spills else None,
            directory=str(run),
            tokenizer=absolute(section.tokenizer),
            layout=section.layout,
            language=groups[number][0],
            validation_fraction=section.validation_fraction,
            seed=section.seed,
        )
        for number, (job, run, made) in enumerate(zip(jobs, runs, each(is_made, runs), strict=True))
        if not made
    ]
    progress = _progress(say, "tokenised part", [job.corpus for job in to_do], total=len(runs))
    for job, summary in engine.run(tokenise_part, to_do):
        size = job.corpus.size
        tokens = sum(summary.tokens.values())
        progress.add(f"{tokens:,} tokens", work=size, counted=size / _MEGABYTE)
    if section.id_field is not None or any(s.format.startswith("wiki") for s in sources):
        _check_ids(runs, jobs, seed=section.seed)
    return Corpus(runs, spills)


def describe_corpus(runs: Sequence[epath.Path], *, unknown: int) -> CorpusRecord:
    """Adds up the figures of all runs.

    Args:
        runs: their directories.
        unknown: id of the unknown piece.

    Raises:
        UserError: there is no document with text.
    """
    summaries = list(each(read_summary, runs))
    counts = np.zeros(1, np.int64)
    for run_counts in each(load_array, [run / "counts.npy" for run in runs]):
        counts = counts + run_counts  # one by one: there may be thousands
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


def _groups(
    section: ExamplesSection, sources: Sequence[Source], problems: Problems
) -> list[tuple[str, tuple[Part, ...]]]:
    """Returns the parts that share a run, with their language, of which a run has but one."""
    # A function of the corpus, so that a run that goes on finds the same parts on any machine.
    total = sum(source.bytes for source in sources)
    part_bytes = min(max(_MIN_PART_BYTES, total // _MOST_PARTS), _MAX_PART_BYTES)
    groups = []
    for language, held in itertools.groupby(sources, key=lambda source: source.language):
        parts = cut_sources(
            list(held),
            section,
            documents=section.documents,
            part_bytes=part_bytes,
            problems=problems,
        )
        # A worker on another machine has another current directory.
        parts = [part._replace(path=absolute(part.path)) for part in parts]
        groups += [(language or section.language, group) for group in _group(parts)]
    return groups


def _corpus_jobs(
    section: ExamplesSection, groups: Sequence[tuple[Part, ...]], directory: epath.Path
) -> list[CorpusJob]:
    index = None
    if section.cleaning.contamination is not None:
        index = directory / OVERLAP_INDEX
        build_index(section.cleaning.contamination, index)
    own = {name: getattr(section, name) for name in SourcesSection.model_fields}
    return [
        CorpusJob(
            parts=group,
            sources=SourcesSection(**own),
            documents=section.documents,
            cleaning=section.cleaning,
            overlap_index=None if index is None else str(index),
        )
        for group in groups
    ]


def _spill(
    jobs: Sequence[CorpusJob],
    *,
    directory: epath.Path,
    engine: Engine,
    say: Callable[[str], None],
) -> list[epath.Path]:
    """Sets all documents aside and decides which go, unless an earlier run has done so."""
    spills = [directory / f"spill-{number:05d}" for number in range(len(jobs))]
    to_do = [
        SpillJob(corpus=job, directory=str(spill))
        for job, spill, made in zip(jobs, spills, each(is_made, spills), strict=True)
        if not made
    ]
    progress = _progress(say, "cleaned part", [job.corpus for job in to_do], total=len(spills))
    for job, tally in engine.run(spill_part, to_do):
        size, read = job.corpus.size, tally.documents["read"]
        progress.add(f"{read:,} documents", work=size, counted=size / _MEGABYTE)
    decided = directory / "duplicates.done"
    if not decided.exists():
        if jobs:
            find_duplicates(spills, jobs[0].cleaning)
        write_aside(decided, "")
    return spills


def _progress(
    say: Callable[[str], None], name: str, jobs: Sequence[CorpusJob], *, total: int
) -> Progress:
    work = sum(job.size for job in jobs)
    return Progress(say, name=name, total=total, finished=total - len(jobs), work=work, unit="MB")


def _check_ids(runs: Sequence[epath.Path], jobs: Sequence[CorpusJob], *, seed: int) -> None:
    """Makes sure that no two documents have one id, where the files give the ids."""
    directories = [run / split for run in runs for split in SPLITS]
    high = load_high_keys(directories)
    alike = high[1:][high[1:] == high[:-1]]
    twice = next(filter(None, (_key_of_two(directories, int(half)) for half in alike)), None)
    if twice is None:
        return
    # Ids are not kept, so the files are read again for the one to name.
    for job in jobs:
        for identity, _ in corpus_documents(job, Tally()):
            if document_key(identity, seed=seed) == twice:
                raise UserError(
                    f"input: found {len(alike)} documents with the id of another, such as "
                    f"{identity}, allowed: each id once in a file"
                )


def _key_of_two(directories: Sequence[epath.Path], high: int) -> int | None:
    """Returns a whole key with this high half that two documents have, if there is one."""
    found = concatenate(
        [TokenisedDocuments.load(d, first_key=high, last_key=high) for d in directories]
    )
    keys, counts = np.unique(found.keys, axis=0, return_counts=True)
    return next((join_key(key) for key in keys[counts > 1]), None)


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
