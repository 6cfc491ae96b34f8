"""A whole corpus as tokenised parts on disk, its figures, and whether its ids are unique."""

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.data.dataset.provenance import CorpusRecord
from bert_jax.data.google_bert.index import unigram_entropy
from bert_jax.files.atomic import write_whole
from bert_jax.files.remote import absolute, each, load_array
from bert_jax.pipelines.cleaning.contamination import build_index
from bert_jax.pipelines.cleaning.duplicates import SpillJob, find_duplicates, spill_part
from bert_jax.pipelines.cleaning.rules import CorpusJob, corpus_documents
from bert_jax.pipelines.cleaning.tally import Tally, is_made
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.sources.documents import Problems, document_key
from bert_jax.pipelines.sources.files import Cutting, FilePart
from bert_jax.pipelines.sources.sources import Source, cut_sources
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    concatenate,
    join_key,
    load_high_keys,
)
from bert_jax.pipelines.tokenised.tokenise import SPLITS, TokeniseJob, read_summary, tokenise_part
from bert_jax.pipelines.unusable_text import UnusableText
from bert_jax.pipelines.workspace import DatasetBuild, StageProgress

OVERLAP_INDEX: Final = "evaluation"
"""Directory of the evaluation sets' n-grams, below that of the work."""

_MIN_PART_BYTES: Final = 1 << 20
_MAX_PART_BYTES: Final = 64 << 20
_MOST_PARTS: Final = 2048
_MEGABYTE: Final = 1e6


class Corpus(NamedTuple):
    """A corpus on disk, in the order of its sources."""

    parts: list[epath.Path]
    """Directories of its tokenised parts. Which documents share one changes nothing."""
    spills: list[epath.Path]
    """Directories to which its documents were spilled, if a rule compares documents."""


def tokenise_corpus(
    build: DatasetBuild, *, sources: Sequence[Source], problems: Problems
) -> Corpus:
    """Makes the tokenised parts that do not exist yet.

    Raises UserError: bad input, two documents with one id, a full disk.
    """
    section, work = build.section, build.workspace.work
    groups = _groups(section, sources, problems)
    jobs = _corpus_jobs(section, [parts for _, parts in groups], work)
    spills = list[epath.Path]()
    if section.cleaning.looks_across_documents:
        spills = _spill(build, jobs)
    directories = [work / f"part-{number:05d}" for number in range(len(groups))]
    to_do = [
        TokeniseJob(
            corpus=jobs[number],
            spill=str(spills[number]) if spills else None,
            directory=str(directories[number]),
            language=groups[number][0],
        )
        for number, made in enumerate(each(is_made, directories))
        if not made
    ]
    progress = _progress(build, "tokenised part", [job.corpus for job in to_do], total=len(jobs))
    for job, summary in build.engine.run(tokenise_part, to_do):
        size = job.corpus.size
        tokens = sum(summary.tokens.values())
        progress.add(f"{tokens:,} tokens", work=size, counted=size / _MEGABYTE)
    if section.id_field is not None or any(s.format.startswith("wiki") for s in sources):
        _check_ids(directories, jobs, seed=section.seed)
    return Corpus(directories, spills)


def describe_corpus(parts: Sequence[epath.Path], *, unknown: int) -> CorpusRecord:
    """Adds up the figures of all tokenised parts; UserError: there is no document with text."""
    summaries = list(each(read_summary, parts))
    counts = np.zeros(1, np.int64)
    for part_counts in each(load_array, [part / "counts.npy" for part in parts]):
        counts = counts + part_counts  # one by one: there may be thousands
    total = int(counts.sum())
    if not total:
        raise UnusableText("input: no document in any of its files; allowed: at least 2 documents")
    return CorpusRecord(
        documents=sum(sum(summary.documents.values()) for summary in summaries),
        sentences=sum(summary.sentences for summary in summaries),
        tokens=total,
        unigram_entropy=unigram_entropy(counts),
        unknown_rate=int(counts[unknown]) / total,
    )


def _groups(
    section: ExamplesSection, sources: Sequence[Source], problems: Problems
) -> list[tuple[str, tuple[FilePart, ...]]]:
    """Returns what each tokenised part is made of: a language, and parts of files in it."""
    # A function of the corpus, so that a resumed run finds the same parts on any machine.
    total = sum(source.bytes for source in sources)
    part_bytes = min(max(_MIN_PART_BYTES, total // _MOST_PARTS), _MAX_PART_BYTES)
    cutting = Cutting(part_bytes, section.documents)
    groups = []
    for language, held in itertools.groupby(sources, key=lambda source: source.language):
        parts = cut_sources(list(held), section, cutting, problems)
        # A worker on another machine has another current directory.
        parts = [part._replace(path=absolute(part.path)) for part in parts]
        groups += [(language or section.language, group) for group in _group(parts)]
    return groups


def _group(parts: Sequence[FilePart]) -> list[tuple[FilePart, ...]]:
    """Puts the parts of small files together, until they are as large as a part of a large one."""
    groups: list[list[FilePart]] = []
    size = _MIN_PART_BYTES
    for part in parts:
        if size >= _MIN_PART_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return [tuple(group) for group in groups]


def _corpus_jobs(
    section: ExamplesSection, groups: Sequence[tuple[FilePart, ...]], work: epath.Path
) -> list[CorpusJob]:
    index = None
    if section.cleaning.contamination is not None:
        index = str(work / OVERLAP_INDEX)
        build_index(section.cleaning.contamination, index)
    section = section.model_copy(update={"tokenizer": absolute(section.tokenizer)})
    return [CorpusJob(group, section, index) for group in groups]


def _spill(build: DatasetBuild, jobs: Sequence[CorpusJob]) -> list[epath.Path]:
    """Spills all documents to disk and decides which go, unless an earlier run has done so."""
    work = build.workspace.work
    spills = [work / f"spill-{number:05d}" for number in range(len(jobs))]
    to_do = [
        SpillJob(corpus=job, directory=str(spill))
        for job, spill, made in zip(jobs, spills, each(is_made, spills), strict=True)
        if not made
    ]
    progress = _progress(build, "cleaned part", [job.corpus for job in to_do], total=len(spills))
    for job, tally in build.engine.run(spill_part, to_do):
        size, read = job.corpus.size, tally.documents["read"]
        progress.add(f"{read:,} documents", work=size, counted=size / _MEGABYTE)
    decided = work / "duplicates.done"
    if not decided.exists():
        if jobs:
            find_duplicates(spills, build.section.cleaning)
        write_whole(decided, "")
    return spills


def _progress(
    build: DatasetBuild, name: str, jobs: Sequence[CorpusJob], *, total: int
) -> StageProgress:
    work, done = sum(job.size for job in jobs), total - len(jobs)
    return StageProgress(say=build.say, name=name, total=total, finished=done, work=work, unit="MB")


def _check_ids(parts: Sequence[epath.Path], jobs: Sequence[CorpusJob], *, seed: int) -> None:
    """Makes sure that no two documents have one id, where the files give the ids."""
    files = [part / split for part in parts for split in SPLITS]
    high = load_high_keys(files)
    alike = high[1:][high[1:] == high[:-1]]
    twice = next(filter(None, (_key_of_two(files, int(half)) for half in alike)), None)
    if twice is None:
        return
    # Ids are not kept, so the files are read again to find the one to name.
    for job in jobs:
        for identity, _ in corpus_documents(job, Tally()):
            if document_key(identity, seed=seed) == twice:
                raise UnusableText(
                    f"input: found {len(alike)} documents with the id of another, such as "
                    f"{identity}, allowed: each id once in a file (of two dumps joined in one "
                    f"file, give each as a file of its own)"
                )


def _key_of_two(files: Sequence[epath.Path], high: int) -> int | None:
    """Returns a whole key with this high half that two documents have, if there is one."""
    found = concatenate([TokenisedDocuments.load(f, first_key=high, last_key=high) for f in files])
    keys, counts = np.unique(found.keys, axis=0, return_counts=True)
    return next((join_key(key) for key in keys[counts > 1]), None)
