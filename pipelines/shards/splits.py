"""From tokenised parts to the shards and the lengths index of each split."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from bert_jax.data.dataset.provenance import SplitRecord
from bert_jax.data.dataset.schema import lengths_name, shard_name
from bert_jax.errors import UserError
from bert_jax.files.atomic import whole_file
from bert_jax.files.read import sha256_of
from bert_jax.files.remote import each, load_array
from bert_jax.pipelines.build import DatasetBuild
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.shards.document_buckets import deal, default_shards
from bert_jax.pipelines.shards.figures import add_pairs, count_distinct, sketch
from bert_jax.pipelines.shards.language_mixture import SplitLanguages, check_languages
from bert_jax.pipelines.shards.write_shard import (
    DocumentBucket,
    ShardJob,
    ShardSummary,
    lengths_path,
    sketch_path,
    write_shard,
)
from bert_jax.pipelines.tokenised.corpus import LanguageCorpus
from bert_jax.pipelines.tokenised.documents import load_high_keys
from bert_jax.pipelines.tokenised.tokenise import SPLITS
from bert_jax.pipelines.workspace import UnusableText, Workspace
from bert_jax.text import SpecialIds


def count_shards(
    section: ExamplesSection, languages: Mapping[str, LanguageCorpus]
) -> dict[str, int]:
    """Returns the number of shards of each split that the dataset is to have.

    Raises UserError: a split or a shard would have fewer documents than its pairing needs.
    """
    tallies = [language.tally for language in languages.values()]
    total = sum(tally.held.total() for tally in tallies)
    least = section.min_documents
    if total < least:
        raise UnusableText(
            f"input: {total} document, kind: {section.kind} needs at least {least}; separate "
            f'documents as documents: "{section.documents}" says, or choose another of its values'
        )
    shards = {}
    for split in SPLITS if section.validation_fraction else ("train",):
        most = max(tally.held[split] for tally in tallies)
        if most < least:
            raise UserError(
                f"validation_fraction: {section.validation_fraction} of {total} documents leaves "
                f"{most} for {split}, which needs {least}; allowed: another fraction, or 0"
            )
        tokens = sum(tally.tokens[split] for tally in tallies)
        shards[split] = default_shards(documents=most, tokens=tokens)
    if section.num_shards is not None:
        most = max(tally.held["train"] for tally in tallies)
        if section.num_shards > most // least:
            raise UserError(
                f"num_shards: {section.num_shards}, allowed: at most {most // least}, "
                f"{least} of the {most} training documents in each"
            )
        shards["train"] = section.num_shards
    return shards


def write_splits(
    build: DatasetBuild, *, special: SpecialIds, languages: Mapping[str, LanguageCorpus]
) -> dict[str, SplitRecord]:
    """Writes the shards that are not finished yet, and the lengths index of every split.

    Raises UserError: see :func:`count_shards` and :func:`check_languages`, or a full disk.
    """
    check_languages(build.section, languages)
    counts = count_shards(build.section, languages)
    splits = {split: SplitLanguages(build.section, split, languages) for split in counts}
    for split, of_split in splits.items():
        for name in (name for name in languages if name not in of_split.paired):
            found = languages[name].tally.held[split]
            build.say(
                f"{split}: without {name}, which has too few documents for examples ({found})"
            )
    jobs = [
        job
        for split, count in counts.items()
        for job in _jobs(build, splits[split], special, count)
    ]
    made = build.run(
        write_shard,
        jobs,
        name="shard",
        total=len(jobs),
        unit="examples",
        work=lambda job: 1,
        told=lambda job, made: (f"{made.record.examples:,} examples", made.record.examples),
    )
    finished = {summary.record.name: summary for summary in made}
    return {
        split: _finish_split(
            build.workspace,
            splits[split],
            [finished[shard_name(split, number, count)] for number in range(count)],
        )
        for split, count in counts.items()
    }


def _jobs(
    build: DatasetBuild, languages: SplitLanguages, special: SpecialIds, count: int
) -> list[ShardJob]:
    split, paired, boosts = languages.split, languages.paired, languages.boosts
    keys = {
        name: load_high_keys([part / split for part in language.parts])
        for name, language in paired.items()
    }
    parts = {name: tuple(map(str, language.parts)) for name, language in paired.items()}
    return [
        ShardJob(
            name=shard_name(split, index, count),
            target=str(build.workspace.partial),
            work=str(build.workspace.work),
            split=split,
            buckets=tuple(
                DocumentBucket(held, parts[held.language], boosts[held.language]) for held in ranges
            ),
            special=special,
            pairing=build.section.pairing,
            seed=build.section.seed,
        )
        for index, ranges in enumerate(deal(keys, count, tokens=languages.tokens(paired)))
    ]


def _finish_split(
    workspace: Workspace, languages: SplitLanguages, shards: Sequence[ShardSummary]
) -> SplitRecord:
    records = tuple(shard.record for shard in shards)
    paths = [lengths_path(workspace.work, record.name) for record in records]
    examples = sum(record.examples for record in records)
    with whole_file(workspace.partial / lengths_name(languages.split)) as temporary:
        _join_lengths(paths, temporary, count=examples)
        lengths_sha256 = sha256_of(temporary)
    smallest = np.zeros(0, np.uint64)
    for added in each(load_array, [sketch_path(workspace.work, r.name) for r in records]):
        smallest = sketch(np.concatenate([smallest, added]))
    sentences = sum(shard.sentences for shard in shards)
    return SplitRecord(
        shards=records,
        documents=sum(shard.documents for shard in shards),
        examples=examples,
        tokens=sum(shard.tokens for shard in shards),
        lengths_sha256=lengths_sha256,
        pairs=add_pairs(shard.pairs for shard in shards),
        sentences=sentences,
        repeated_sentences=max(0.0, 1.0 - count_distinct(smallest) / sentences),
        languages=languages.records(shards),
    )


def _join_lengths(paths: Sequence[epath.Path], target: pathlib.Path, *, count: int) -> None:
    """Writes the ``count`` lengths of some files into one, a file in memory at a time."""
    with target.open("wb") as file:
        descr = np.lib.format.dtype_to_descr(np.dtype(np.uint16))
        header = {"descr": descr, "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        for lengths in each(load_array, paths):
            file.write(lengths.tobytes())
