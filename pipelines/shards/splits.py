"""Writes the shards and the lengths index of each split from the tokenised parts."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from bert_jax.data.dataset.provenance import SplitRecord
from bert_jax.data.dataset.schema import lengths_name, shard_name
from bert_jax.errors import UserError, counted
from bert_jax.files.atomic import whole_file
from bert_jax.files.read import sha256_of
from bert_jax.files.remote import each, load_array
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.shards import write_shard as shard
from bert_jax.pipelines.shards.language_mixture import SplitLanguages, check_languages
from bert_jax.pipelines.tokenised.corpus import SPLITS, LanguageCorpus
from bert_jax.pipelines.tokenised.documents import load_high_keys
from bert_jax.pipelines.workspace import DatasetBuild, UnusableText, Workspace
from bert_jax.text import Tokenizer

MIN_DOCUMENTS_PER_BUCKET: Final = 16  # so that random next sentences come from many documents
TOKENS_PER_BUCKET: Final = 1_000_000  # a worker has one bucket in memory
_MAX_DEFAULT_SHARDS: Final = 1024


def count_shards(
    section: ExamplesSection, languages: Mapping[str, LanguageCorpus]
) -> dict[str, int]:
    """Returns the number of shards of each split.

    Raises UserError if a split or a shard would have fewer documents than its pairing needs.
    """
    tallies = [language.tally for language in languages.values()]
    total = sum(tally.held.total() for tally in tallies)
    least = section.min_documents
    if total < least:
        raise UnusableText(
            "text.few_documents",
            f"found {total} document, allowed: at least {least}. Is documents: set correctly?",
            place="input",
        )
    shards = {}
    for split in SPLITS if section.validation_fraction else ("train",):
        most = max(tally.held[split] for tally in tallies)
        if most < least:
            raise UserError(
                "examples.validation_fraction",
                f"found {section.validation_fraction}: {most} of {total} for {split} are too few",
                place="validation_fraction",
            )
        tokens = sum(tally.tokens[split] for tally in tallies)
        # One shard for every million tokens (one bucket). Each needs 16 documents of a language.
        shards[split] = min(_pieces(documents=most, tokens=tokens), _MAX_DEFAULT_SHARDS)
    if section.num_shards is not None:
        most = max(tally.held["train"] for tally in tallies)
        if section.num_shards > most // least:
            raise UserError(
                "examples.num_shards",
                f"found {section.num_shards}, allowed: at most {most // least}",
                place="num_shards",
            )
        shards["train"] = section.num_shards
    return shards


def write_splits(
    build: DatasetBuild, *, tokenizer: Tokenizer, languages: Mapping[str, LanguageCorpus]
) -> dict[str, SplitRecord]:
    """Writes the shards that are not finished yet, and the lengths index of every split.

    Raises UserError if the disk is full; see also :func:`check_languages` and :func:`count_shards`.
    """
    check_languages(build.section, languages)
    counts = count_shards(build.section, languages)
    splits = {split: SplitLanguages(build.section, split, languages) for split in counts}
    for split, of_split in splits.items():
        for name in (name for name in languages if name not in of_split.paired):
            found = languages[name].tally.held[split]
            build.say(
                f"{split}: skipping {name}: {counted(found, 'document')}, too few for examples"
            )
    jobs = []
    for split, count in counts.items():
        jobs += _jobs(build, splits[split], tokenizer, count)
    made = build.run(
        shard.write_shard,
        jobs,
        name="shard",
        total=len(jobs),
        unit="examples",
        work=lambda job: 1,
        result=lambda job, made: (f"{made.record.examples:,} examples", made.record.examples),
    )
    finished = {summary.record.name: summary for summary in made}
    records = {}
    for split, count in counts.items():
        held = [finished[shard_name(split, number, count)] for number in range(count)]
        records[split] = _finish_split(build.workspace, splits[split], held)
    return records


def _jobs(
    build: DatasetBuild, languages: SplitLanguages, tokenizer: Tokenizer, count: int
) -> list[shard.ShardJob]:
    split, paired, boosts = languages.split, languages.paired, languages.boosts
    keys = {
        name: load_high_keys([part / split for part in language.parts])
        for name, language in paired.items()
    }
    parts = {name: tuple(map(str, language.parts)) for name, language in paired.items()}
    return [
        shard.ShardJob(
            name=shard_name(split, index, count),
            target=str(build.workspace.partial),
            work=str(build.workspace.work),
            split=split,
            buckets=tuple(buckets),
            parts=parts,
            boosts=boosts,
            special=tokenizer.special,
            separators=tokenizer.separators,
            pairing=build.section.pairing,
            seed=build.section.seed,
        )
        for index, buckets in enumerate(deal(keys, count, tokens=languages.tokens(paired)))
    ]


def _finish_split(
    workspace: Workspace, languages: SplitLanguages, shards: Sequence[shard.ShardSummary]
) -> SplitRecord:
    records = tuple(made.record for made in shards)
    examples = sum(record.examples for record in records)

    def figures(kind: str) -> Iterator[np.ndarray]:
        return each(load_array, [shard.figures_path(workspace.work, r.name, kind) for r in records])

    with whole_file(workspace.partial / lengths_name(languages.split)) as temporary:
        with temporary.open("wb") as file:
            descr = np.lib.format.dtype_to_descr(np.dtype(np.uint16))
            header = {"descr": descr, "fortran_order": False, "shape": (examples,)}
            np.lib.format.write_array_header_1_0(file, header)
            for lengths in figures("lengths"):  # one at a time: there may be thousands of shards
                file.write(lengths.tobytes())
        lengths_sha256 = sha256_of(temporary)
    smallest = np.zeros(0, np.uint64)
    for added in figures("sketch"):
        smallest = shard.sketch(np.concatenate([smallest, added]))
    sentences = sum(made.sentences for made in shards)
    return SplitRecord(
        shards=records,
        documents=sum(made.documents for made in shards),
        examples=examples,
        tokens=sum(sum(made.tokens.values()) for made in shards),
        lengths_sha256=lengths_sha256,
        pairs=shard.add_pairs(made.pairs for made in shards),
        sentences=sentences,
        repeated_sentences=max(0.0, 1.0 - shard.count_distinct(smallest) / sentences),
        languages=languages.records(shards),
    )


def bucket_ranges(keys: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Cuts documents, sorted by key, into buckets of equal size.

    A bucket is a range of the sorted keys. Hashing keys into buckets could give a bucket a single
    document by chance.

    Args:
        keys: high halves of all keys, ``[d]`` uint64, sorted.
        count: number of buckets.

    Returns the first and the last key of each bucket, both inclusive.
    """
    cuts = [len(keys) * bucket // count for bucket in range(count + 1)]
    return [(int(keys[a]), int(keys[b - 1])) for a, b in itertools.pairwise(cuts)]


def deal(
    keys: Mapping[str, np.ndarray], count: int, *, tokens: Mapping[str, int]
) -> list[list[shard.DocumentBucket]]:
    """Assigns documents to ``count`` shards and returns the buckets of each shard.

    The language with most documents is in all shards. Each other language is in at least one shard,
    and in more if each of them gets 16 of its documents. Small languages are in different shards. A
    shard's documents of a language form one bucket. Above a million tokens they form several
    buckets of at least 16 documents, so memory use does not grow with the corpus.

    Args:
        keys: high halves of all keys by language, ``[d]`` uint64, sorted.
        count: number of shards.
        tokens: number of tokens by language.
    """
    shards: list[list[shard.DocumentBucket]] = [[] for _ in range(count)]
    most = max(map(len, keys.values()))
    for number, (language, held) in enumerate(keys.items()):
        enough = max(1, min(count, len(held) // MIN_DOCUMENTS_PER_BUCKET))
        parts = count if len(held) == most else enough
        pieces = _pieces(documents=len(held) // parts, tokens=tokens[language] // parts)
        for place, (first, last) in enumerate(bucket_ranges(held, parts * pieces)):
            part = place // pieces
            target = (part * len(keys) + number) * count // (parts * len(keys))
            shards[target].append(shard.DocumentBucket(language, first, last))
    return shards


def _pieces(*, documents: int, tokens: int) -> int:
    wanted = -(-tokens // TOKENS_PER_BUCKET)
    return max(1, min(wanted, documents // MIN_DOCUMENTS_PER_BUCKET))
