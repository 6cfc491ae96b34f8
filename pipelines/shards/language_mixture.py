"""The languages of a corpus on disk: how much there is of each, and how often it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from etils import epath

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.errors import UserError
from bert_jax.files.remote import each
from bert_jax.pipelines.pairing.language_sampling import boosts, mixed_shares
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.shards.write_shard import ShardSummary
from bert_jax.pipelines.tokenised.tokenise import SPLITS, read_summary

Languages = Mapping[str, "Language"]
"""By code, in the order of codes."""


class Language(NamedTuple):
    """One language's tokenised documents."""

    runs: tuple[epath.Path, ...]
    documents: dict[str, int]
    """By split."""
    tokens: dict[str, int]
    """By split."""


def read_languages(section: ExamplesSection, runs: Sequence[epath.Path]) -> dict[str, Language]:
    """Returns the languages of a corpus, by code; a single one where the settings name none.

    Args:
        section: the settings.
        runs: directories of all runs.

    Raises:
        UserError: a language that the settings name has too few documents for training.
    """
    summaries = dict(zip(runs, each(read_summary, runs), strict=True))
    named = (language or section.language for language in section.by_language)
    found = {}
    for name in named:
        held = {run: made for run, made in summaries.items() if made.language == name}
        found[name] = Language(
            runs=tuple(held),
            documents={s: sum(made.documents[s] for made in held.values()) for s in SPLITS},
            tokens={s: sum(made.tokens[s] for made in held.values()) for s in SPLITS},
        )
        if isinstance(section.input, dict):
            _check(section, name, found[name])
    return found


def pass_boosts(section: ExamplesSection, languages: Languages, *, split: str) -> dict[str, float]:
    """Returns the factor of each language's passes.

    1 in the split ``validation``, so that runs on other mixtures compare, and without a mixture.

    Args:
        section: the settings.
        languages: those with examples in the split.
        split: of the dataset.
    """
    return boosts(_tokens(languages, split), smoothing=_smoothing(section, split))


def describe_languages(
    section: ExamplesSection,
    languages: Languages,
    shards: Sequence[ShardSummary],
    *,
    split: str,
) -> dict[str, LanguageRecord] | None:
    """Returns each language's part of a split; ``None``: the settings tell no languages apart.

    Args:
        section: the settings.
        languages: all of them.
        shards: all of the split's.
        split: of the dataset.
    """
    if not isinstance(section.input, dict):
        return None
    paired = pairable(section, languages, split=split)
    wanted = mixed_shares(_tokens(paired, split), smoothing=_smoothing(section, split))
    boost = pass_boosts(section, paired, split=split)
    total = sum(language.tokens[split] for language in languages.values())
    records = {}
    for name, language in languages.items():
        counts = [shard.languages.get(name, [0, 0]) for shard in shards]
        records[name] = LanguageRecord(
            documents=language.documents[split],
            tokens=language.tokens[split],
            share=language.tokens[split] / total,
            mixture_share=wanted.get(name, 0.0),
            passes=section.dupe_factor * boost.get(name, 0.0),
            examples=sum(examples for examples, _ in counts),
            example_tokens=sum(tokens for _, tokens in counts),
        )
    return records


def pairable(section: ExamplesSection, languages: Languages, *, split: str) -> dict[str, Language]:
    """Returns the languages that have documents enough in a split for examples."""
    return {
        name: language
        for name, language in languages.items()
        if language.documents[split] >= section.min_documents
    }


def _tokens(languages: Languages, split: str) -> dict[str, int]:
    return {name: language.tokens[split] for name, language in languages.items()}


def _smoothing(section: ExamplesSection, split: str) -> float:
    return section.mixture.smoothing if section.mixture is not None and split == "train" else 1.0


def _check(section: ExamplesSection, name: str, language: Language) -> None:
    if not sum(language.documents.values()):
        raise UserError(f"input: no document in the files of {name}, allowed: at least 2 documents")
    found, least = language.documents["train"], section.min_documents
    if found < least:
        raise UserError(
            f"input: {name} has {found} document(s) for training, kind: {section.kind} needs at "
            f"least {least} of each language"
        )
