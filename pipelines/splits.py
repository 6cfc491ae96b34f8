"""From runs to the shards and the lengths index of each split."""

from __future__ import annotations

import hashlib
import io
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.data.pairing import PairingSection
from bert_jax.data.provenance import ShardRecord, SplitRecord
from bert_jax.data.schema import lengths_name, shard_name
from bert_jax.data.tokenised import load_high_keys
from bert_jax.errors import UserError
from bert_jax.text import SpecialIds
from pipelines.disk import disk_errors
from pipelines.engine import Engine
from pipelines.figures import add_pairs, count_distinct, sketch
from pipelines.progress import Progress
from pipelines.runs import split_sizes
from pipelines.settings import ExamplesSection
from pipelines.shards import (
    ShardJob,
    ShardSummary,
    bucket_ranges,
    default_shards,
    lengths_path,
    sketch_path,
    write_shard,
)
from pipelines.tokenise import SPLITS
from pipelines.workspace import Workspace


def count_shards(section: ExamplesSection, runs: Sequence[pathlib.Path]) -> dict[str, int]:
    """Returns the number of shards of each split that the dataset is to have.

    Args:
        section: the settings.
        runs: directories of all runs.

    Raises:
        UserError: a split or a shard would have fewer documents than its pairing needs.
    """
    sizes = {split: split_sizes(runs, split=split) for split in SPLITS}
    total = sum(documents for documents, _ in sizes.values())
    least = section.min_documents
    if total < least:
        raise UserError(
            f"input: {total} document, kind: {section.kind} needs at least {least}; separate "
            f'documents as documents: "{section.documents}" says, or choose another of its values'
        )
    if not section.validation_fraction:
        del sizes["validation"]
    for split, (documents, _) in sizes.items():
        if documents < least:
            raise UserError(
                f"validation_fraction: {section.validation_fraction} of {total} documents leaves "
                f"{documents} for {split}; allowed: at least {least}, or validation_fraction: 0"
            )
    shards = {split: default_shards(documents=d, tokens=t) for split, (d, t) in sizes.items()}
    if section.num_shards is not None:
        most = sizes["train"][0] // least
        if section.num_shards > most:
            raise UserError(
                f"num_shards: {section.num_shards}, allowed: at most {most}, "
                f"{least} of the {sizes['train'][0]} training documents in each"
            )
        shards["train"] = section.num_shards
    return shards


def write_splits(
    section: ExamplesSection,
    workspace: Workspace,
    *,
    special: SpecialIds,
    runs: Sequence[pathlib.Path],
    engine: Engine,
    say: Callable[[str], None],
) -> dict[str, SplitRecord]:
    """Writes the shards that are not finished yet, and the lengths index of every split.

    Args:
        section: the settings.
        workspace: where shards and indices go.
        special: ids of the special pieces.
        runs: directories of all runs.
        engine: who does it.
        say: called with a line of text when a shard is finished.

    Returns:
        The record of each split.

    Raises:
        UserError: see :func:`count_shards`, or a full disk.
    """
    counts = count_shards(section, runs)
    jobs = [
        job
        for split, count in counts.items()
        for job in _jobs(section, workspace, special, runs, split=split, count=count)
    ]
    finished: dict[str, ShardSummary] = {}
    progress = Progress(
        say, name="shard", total=len(jobs), finished=0, work=len(jobs), unit="examples"
    )
    for _, summary in engine.run(write_shard, jobs):
        finished[summary.record.name] = summary
        examples = summary.record.examples
        progress.add(f"{examples:,} examples", work=1, counted=examples)
    return {
        split: _finish_split(
            workspace, split, [finished[shard_name(split, i, count)] for i in range(count)]
        )
        for split, count in counts.items()
    }


def _jobs(
    section: ExamplesSection,
    workspace: Workspace,
    special: SpecialIds,
    runs: Sequence[pathlib.Path],
    *,
    split: str,
    count: int,
) -> list[ShardJob]:
    keys = load_high_keys([run / split for run in runs])
    pairing = PairingSection(
        **{name: getattr(section, name) for name in PairingSection.model_fields}
    )
    return [
        ShardJob(
            name=shard_name(split, index, count),
            target=str(workspace.partial),
            work=str(workspace.work),
            runs=tuple(map(str, runs)),
            split=split,
            first_key=first,
            last_key=last,
            special=special,
            pairing=pairing,
            seed=section.seed,
        )
        for index, (first, last) in enumerate(bucket_ranges(keys, count))
    ]


def _finish_split(workspace: Workspace, split: str, shards: Sequence[ShardSummary]) -> SplitRecord:
    """Joins the shards' lengths into the split's index."""
    records: tuple[ShardRecord, ...] = tuple(shard.record for shard in shards)
    lengths = np.concatenate(
        [np.load(lengths_path(str(workspace.work), record.name)) for record in records]
    )
    spelled = io.BytesIO()
    np.save(spelled, lengths)
    path = workspace.partial / lengths_name(split)
    with disk_errors(path):
        path.write_bytes(spelled.getbuffer())
    smallest = np.zeros(0, np.uint64)
    for record in records:
        added = np.load(sketch_path(str(workspace.work), record.name))
        smallest = sketch(np.concatenate([smallest, added]))
    sentences = sum(shard.sentences for shard in shards)
    pairs = [shard.pairs for shard in shards if shard.pairs is not None]
    return SplitRecord(
        shards=records,
        documents=sum(shard.documents for shard in shards),
        examples=len(lengths),
        tokens=sum(shard.tokens for shard in shards),
        lengths_sha256=hashlib.sha256(spelled.getbuffer()).hexdigest(),
        pairs=add_pairs(pairs) if pairs else None,
        sentences=sentences,
        repeated_sentences=max(0.0, 1.0 - count_distinct(smallest) / sentences),
    )
