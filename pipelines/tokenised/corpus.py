"""Makes the tokenised parts of a corpus on disk: documents as token ids, sorted by key."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from etils import epath

from bert_jax.data.dataset.provenance import CorpusRecord
from bert_jax.data.dataset.schema import token_dtype
from bert_jax.data.google_bert.index import unigram_entropy
from bert_jax.files.atomic import whole_directory, write_whole
from bert_jax.files.remote import absolute, each, load_array
from bert_jax.pipelines.cleaning.contamination import build_index
from bert_jax.pipelines.cleaning.duplicates import find_duplicates, spill_part, unique_documents
from bert_jax.pipelines.cleaning.rules import CorpusPart, corpus_documents
from bert_jax.pipelines.sources.documents import document_key, document_sentences
from bert_jax.pipelines.sources.sources import Source, cut_sources
from bert_jax.pipelines.tally import TALLY, Tally, is_made, total
from bert_jax.pipelines.tokenised.documents import (
    TokenisedDocuments,
    is_validation,
    key_order,
    load_high_keys,
    save_array,
    split_keys,
    starts_of,
)
from bert_jax.pipelines.workspace import DatasetBuild, UnusableText
from bert_jax.text import Tokenizer, load_tokenizer

SPLITS: Final = ("train", "validation")

_MIN_PART_BYTES: Final = 1 << 20
_MAX_PART_BYTES: Final = 64 << 20
_MOST_PARTS: Final = 2048
# Text per call of the tokenizer. The lists of ids take a hundred times the memory of the text.
_BATCH_CHARACTERS: Final = 1 << 18

_tokenizer = functools.lru_cache(maxsize=1)(load_tokenizer)

T = TypeVar("T")


class LanguageCorpus(NamedTuple):
    """Tokenised documents of one language."""

    parts: list[epath.Path]  # directories in the order of the sources
    tally: Tally


class Corpus(NamedTuple):
    """A corpus on disk."""

    languages: dict[str, LanguageCorpus]  # by code, in the order of the settings
    tally: Tally  # counts of all stages

    def record(self, *, unknown: int) -> CorpusRecord:
        """Returns statistics of the corpus. Raises UserError if no document has text."""
        counts = np.zeros(1, np.int64)
        parts = [part / "counts.npy" for held in self.languages.values() for part in held.parts]
        for part_counts in each(load_array, parts):
            counts = counts + part_counts  # one array at a time: there may be thousands
        tokens = int(counts.sum())
        if not tokens:
            raise UnusableText.wrong(
                "text.empty", "no document in any file", "at least 2", place="input"
            )
        return CorpusRecord(
            documents=self.tally.held.total(),
            sentences=self.tally.sentences,
            tokens=tokens,
            unigram_entropy=unigram_entropy(counts),
            unknown_rate=int(counts[unknown]) / tokens,
        )


def tokenise_corpus(build: DatasetBuild, *, sources: Sequence[Source], tally: Tally) -> Corpus:
    """Makes the tokenised parts that do not exist yet.

    ``tally`` has the counts of `find_sources`. Raises UserError if the input is bad, two documents
    have the same id, or the disk is full.
    """
    section = build.section
    parts = list(_parts(build, sources, tally))
    if section.cleaning.contamination is not None:
        build_index(section.cleaning.contamination, build.workspace.work)
    tallies = [tally]
    if section.cleaning.compares_documents:
        spills = {part.spill: part for part in parts}
        _make(build, spill_part, spills, "cleaned", lambda t: f"{t.documents['read']:,} documents")
        decided = build.workspace.work / "duplicates.done"
        if not decided.exists():
            if parts:
                find_duplicates(list(spills), section.cleaning)
            write_whole(decided, "")
        tallies += each(Tally.load, list(spills))
    directories = {part.tokenised: part for part in parts}
    _make(build, tokenise_part, directories, "tokenised", lambda t: f"{t.tokens.total():,} tokens")
    if section.id_field is not None or any(s.format.startswith("wiki") for s in sources):
        _refuse_equal_ids(parts, seed=section.seed)
    languages = {}
    for language in (code or section.language for code in section.by_language):
        held = [part.tokenised for part in parts if part.language == language]
        languages[language] = LanguageCorpus(held, total(each(Tally.load, held)))
    return Corpus(languages, total([*tallies, *(held.tally for held in languages.values())]))


def _parts(build: DatasetBuild, sources: Sequence[Source], tally: Tally) -> Iterator[CorpusPart]:
    """Yields the parts of the corpus. Large files are cut, small files of a language are joined."""
    section = build.section
    # The size depends on the corpus alone, so a resumed run has the same parts on any machine.
    size = sum(source.bytes for source in sources)
    part_bytes = min(max(_MIN_PART_BYTES, size // _MOST_PARTS), _MAX_PART_BYTES)
    # Paths are absolute, because a worker may have another current directory.
    resolved = section.model_copy(update={"tokenizer": absolute(section.tokenizer)})
    numbers = itertools.count()
    for language, held in itertools.groupby(sources, key=lambda source: source.language):
        files = cut_sources(list(held), section, part_bytes, tally)
        files = [part._replace(path=absolute(part.path)) for part in files]
        for group in _batches(files, lambda part: part.size, least=_MIN_PART_BYTES):
            work = str(build.workspace.work)
            yield CorpusPart(next(numbers), group, language or section.language, resolved, work)


def _batches(
    items: Iterable[T], size: Callable[[T], int], *, least: int
) -> Iterator[tuple[T, ...]]:
    """Yields batches of consecutive items. A batch ends when its size reaches ``least``."""
    batch, held = list[T](), 0
    for item in items:
        batch.append(item)
        held += size(item)
        if held >= least:
            yield tuple(batch)
            batch, held = [], 0
    if batch:
        yield tuple(batch)


def _make(
    build: DatasetBuild,
    function: Callable[[CorpusPart], Tally],
    parts: Mapping[epath.Path, CorpusPart],
    done: str,
    describe: Callable[[Tally], str],
) -> None:
    """Runs a stage for the parts that no earlier run has completed.

    Args:
        build: the dataset's settings and engine.
        function: function that makes a part and returns its counts.
        parts: all parts, by directory.
        done: participle of the stage for progress lines: ``tokenised``.
        describe: function that describes a part's counts in progress lines.
    """
    is_there = each(is_made, list(parts))
    to_do = [part for part, there in zip(parts.values(), is_there, strict=True) if not there]
    for _ in build.run(
        function,
        to_do,
        name=f"{done} part",
        total=len(parts),
        unit="MB",
        work=lambda part: part.size,
        result=lambda part, tally: (describe(tally), part.size / 1e6),
    ):
        pass


def _refuse_equal_ids(parts: Sequence[CorpusPart], *, seed: int) -> None:
    """Raises UserError if two documents have the same id."""
    high = load_high_keys([part.tokenised / split for part in parts for split in SPLITS])
    alike = high[1:][high[1:] == high[:-1]]
    if not len(alike):
        return
    # The parts store no ids. Read the files again to name one in the message.
    suspects, seen = set(alike.tolist()), set[str]()
    for part in parts:
        for identity, _ in corpus_documents(part, Tally()):
            if document_key(identity, seed=seed) >> 64 not in suspects:
                continue
            if identity in seen:
                raise UnusableText(
                    "text.equal_ids",
                    f"found {len(alike)} ids twice, as {identity}. Are two dumps joined?",
                    place="input",
                )
            seen.add(identity)


def tokenise_part(part: CorpusPart) -> Tally:
    """Reads, splits and encodes the documents of a part and writes them to a directory.

    The directory has a file of :class:`TokenisedDocuments` per split, sorted by key, and
    ``counts.npy`` with the number of occurrences of each token id. It appears atomically. If it
    exists already, nothing is written. Raises UserError if the input is bad (see
    :func:`read_documents`) or the disk is full.
    """
    if is_made(part.tokenised):  # Beam may run a job twice
        return Tally.load(part.tokenised)
    tokenizer, tally = _tokenizer(part.section.tokenizer), Tally()
    splits, counts = _encode_documents(part, tokenizer, tally)
    with whole_directory(part.tokenised, last=TALLY) as temporary:
        for split, held in splits.items():
            held.save(temporary / split)
            tally.held[split] = len(held)
            tally.tokens[split] = len(held.tokens)
            tally.sentences += len(held.sentence_starts) - 1
        save_array(temporary / "counts.npy", counts)
        tally.save(temporary)
    return tally


def _encode_documents(
    part: CorpusPart, tokenizer: Tokenizer, tally: Tally
) -> tuple[dict[str, TokenisedDocuments], np.ndarray]:
    """Returns the documents of each split, sorted by key, and the counts of all token ids."""
    section = part.section
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    keys, held_out = list[int](), list[bool]()
    sentence_counts = list[int]()  # per document
    lengths = list[int]()  # tokens per sentence
    tokens = [np.empty(0, token_dtype(tokenizer.vocab_size))]
    documents = _documents(part, tally)
    for batch in _batches(documents, lambda d: sum(map(len, d[1])), least=_BATCH_CHARACTERS):
        kept: list[list[int]] = []
        encoded = tokenizer.encode_parts([sentences for _, sentences in batch])
        for (identity, _), found in zip(batch, encoded, strict=True):
            # Some sentences, for example of control characters, have no tokens.
            ids = [sentence for sentence in found if sentence]
            if ids:
                kept += ids
                sentence_counts.append(len(ids))
                keys.append(document_key(identity, seed=section.seed))
                held_out.append(is_validation(identity, fraction=section.validation_fraction))
        lengths += map(len, kept)
        flat = np.fromiter(itertools.chain.from_iterable(kept), np.int64, count=sum(map(len, kept)))
        counts += np.bincount(flat, minlength=len(counts))
        tokens.append(flat.astype(tokens[0].dtype))
    everything = TokenisedDocuments(
        split_keys(keys), starts_of(sentence_counts), starts_of(lengths), np.concatenate(tokens)
    )
    order = key_order(everything.keys)
    is_held_out = np.array(held_out, bool)[order]
    chosen = {"train": order[~is_held_out], "validation": order[is_held_out]}
    return {split: everything.select(chosen[split]) for split in SPLITS}, counts


def _documents(part: CorpusPart, tally: Tally) -> Iterator[tuple[str, list[str]]]:
    layout = part.section.layout
    if part.section.cleaning.compares_documents:
        documents = unique_documents(part.spill, tally)
    else:
        documents = corpus_documents(part, tally)
    for identity, document in documents:
        tally.documents["kept"] += 1
        tally.lines["kept"] += len(document.lines)
        yield identity, document_sentences(document, layout=layout, language=part.language)
