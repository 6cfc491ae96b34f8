"""Provenance of a dataset: settings, sources, and the size and hash of every file."""

import contextlib
import hashlib
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import pydantic
from etils import epath

from bert_jax.errors import SettingError, UserError, differing
from bert_jax.files.read import read_json_object
from bert_jax.files.remote import within
from bert_jax.files.seal import refuse_changed, unsealed
from bert_jax.section import Section
from bert_jax.validation import validate

FORMAT_VERSION: Final = 1  # format that this version writes; newer formats are refused
PROVENANCE_NAME: Final = "provenance.json"

TokenDtype: TypeAlias = Literal["uint16", "uint32"]
Count: TypeAlias = Annotated[int, pydantic.Field(ge=0)]
Sha256: TypeAlias = Annotated[str, pydantic.Field(pattern="^[0-9a-f]{64}$")]
# File name without slashes, so that no path leaves the dataset's directory.
FileName: TypeAlias = Annotated[str, pydantic.Field(pattern=r"^[\w-][\w.-]*$")]
PairingKind = Literal["nsp", "sop", "full_sentences", "doc_sentences"]

PAIR_KINDS: Final = ("nsp", "sop")  # kinds of pairing whose examples have a second span
PAIR_SPECIAL_TOKENS: Final = 3  # number of special tokens in `[CLS] A [SEP] B [SEP]`
MIN_PAIR_TOKENS: Final = 2  # minimum tokens of a pair: one in each span


class PairingSection(Section):
    """How documents become examples: the flags of google-research/bert and RoBERTa's formats."""

    kind: PairingKind = "nsp"
    """``nsp``: two spans; the second is random in half of the examples (arXiv 1810.04805). ``sop``:
    two spans of one document, swapped in half of the examples (ALBERT, arXiv 1909.11942).
    ``full_sentences``: one span of as many contiguous sentences as fit; it may continue in the next
    document, after a separator. ``doc_sentences``: one span that ends with its document (both
    RoBERTa, arXiv 1907.11692)."""
    max_seq_length: Annotated[
        int, pydantic.Field(ge=PAIR_SPECIAL_TOKENS + MIN_PAIR_TOKENS, lt=1 << 16)
    ] = 512
    """Maximum number of tokens in an example, including special tokens. google-research/bert's
    default is 128."""
    dupe_factor: Annotated[int, pydantic.Field(ge=1)] = 10
    """Number of passes over the documents, each with different random numbers. Without a pair task
    the default is 1. With ``full_sentences``, the order of documents differs between passes."""
    short_seq_prob: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.1
    """Probability that a pass over a document has a random target length. Always 0 without a pair
    task."""

    @property
    def has_pairs(self) -> bool:
        """Whether the examples have a second span and a label."""
        return self.kind in PAIR_KINDS

    @property
    def min_documents(self) -> int:
        """Minimum number of documents: a random next sentence needs a second document."""
        return 2 if self.kind == "nsp" else 1

    @pydantic.model_validator(mode="before")
    @classmethod
    def _defaults_of_kind(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") in ("full_sentences", "doc_sentences"):
            return {"dupe_factor": 1, "short_seq_prob": 0.0, **values}
        return values

    @pydantic.model_validator(mode="after")
    def _draws_fit_kind(self) -> Self:
        if not self.has_pairs and self.short_seq_prob:
            raise SettingError(
                "pairing.short_seq_prob",
                f"found {self.short_seq_prob:g}, allowed: 0, because {self.kind} fills examples",
                place="short_seq_prob",
            )
        if self.kind == "doc_sentences" and self.dupe_factor > 1:
            raise SettingError(
                "pairing.dupe_factor",
                f"found {self.dupe_factor}, allowed: 1, because every pass would be the same",
                place="dupe_factor",
            )
        return self


class MixtureSection(Section):
    """Target share of each language."""

    smoothing: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.7
    """Exponent of each language's share of the corpus. With 1 the shares do not change; with 0 all
    languages have equal shares."""


class ShardRecord(Section):
    """One shard file. `open_dataset` checks the size, ``Dataset.verify`` the hash."""

    name: FileName
    bytes: Count
    examples: Count
    sha256: Sha256


class PairsRecord(Section):
    """Number of pairs (label 0, label 1), by whether their spans are from one document or two.

    With kind ``nsp``, pairs of label 0 are from one document, random pairs (label 1) from two.
    """

    same_document: tuple[Count, Count]
    other_document: tuple[Count, Count]


class LanguageRecord(Section):
    """One language of a split."""

    documents: Count
    tokens: Count  # tokens of the text; each document counts once
    share: float  # share of the split's tokens
    mixture_share: float  # target share in the mixture
    passes: float  # mean number of passes over a document; 0 if too few documents for pairs
    examples: Count
    example_tokens: Count  # tokens of the examples, including special tokens


class SplitRecord(Section):
    """One split: its shards in order, and its totals."""

    shards: tuple[ShardRecord, ...]
    documents: Count
    examples: Count
    tokens: Count  # tokens of all examples, including special tokens; files have no padding
    lengths_sha256: Sha256  # SHA-256 of the lengths index, the file `<split>.lengths.npy`
    pairs: PairsRecord | None = None  # None without a pair task
    sentences: Count | None = None  # sentences of the documents; each document counts once
    # Share of repeated sentences: 1 − distinct sentences / sentences. Above 16,384 distinct
    # sentences it is an estimate, accurate to 1%.
    repeated_sentences: float | None = None
    # Languages by ISO 639 code. Absent if the settings do not distinguish languages.
    languages: dict[str, LanguageRecord] | None = None

    @pydantic.model_validator(mode="after")
    def _adds_up(self) -> Self:
        if (found := sum(shard.examples for shard in self.shards)) != self.examples:
            raise SettingError(
                "dataset.example_count",
                f"found {self.examples}, but the shards have {found}",
                place="examples",
            )
        return self

    @pydantic.model_serializer(mode="wrap")
    def _leave_out(self, handler: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), "languages")


class SourceRecord(Section):
    """One input file."""

    name: str  # path below the input root
    bytes: Count


class TextRecord(Section):
    """How the input files were read."""

    layout: str
    documents: str
    # Language of the sentence splitter. If the settings distinguish languages, a tuple with the
    # language of each file.
    language: str | tuple[str, ...] | None
    files: tuple[SourceRecord, ...]


class CorpusRecord(Section):
    """Statistics of the whole corpus before pairing. Each document counts once."""

    documents: Count
    sentences: Count
    tokens: Count
    # Entropy of the token frequencies, in nats per token. A model that has learned only token
    # frequencies has this masked-token loss.
    unigram_entropy: float
    unknown_rate: float  # share of [UNK] among the tokens


class Recipe(Section):
    """Settings that, together with the input files, determine a dataset's bytes."""

    tokenizer_hash: str
    vocab_size: Annotated[int, pydantic.Field(ge=1, le=1 << 32)]
    special_ids: dict[str, int]  # `{"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}`
    token_dtype: TokenDtype  # type of the stored `input_ids`
    seed: int
    validation_fraction: float
    num_shards: int | None  # configured number of training shards, if any
    pairing: PairingSection
    text: TextRecord
    mixture: MixtureSection | None = None


class Provenance(Recipe):
    """``provenance.json``. It is written last: a directory with this file is complete."""

    format_version: int = FORMAT_VERSION
    corpus: CorpusRecord
    splits: dict[FileName, SplitRecord]

    @pydantic.model_serializer(mode="wrap")
    def _leave_out(self, handler: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), "mixture")

    def require_tokenizer(self, given: str, *, place: str) -> None:
        """Raises UserError at `place` if `given` is not the hash of the dataset's tokenizer."""
        if self.tokenizer_hash != given:
            made_with, given = differing(self.tokenizer_hash, given)
            raise UserError(
                "dataset.other_tokenizer",
                f"made with another tokenizer ({made_with}) than this one ({given})",
                place=place,
            )

    def fingerprint(self, split: str) -> str:
        """Returns a hash of one split's content, 32 hexadecimal digits.

        It covers the tokenizer's hash, the token dtype, and the shards in order, which determine
        the example at each index.
        """
        content = [self.tokenizer_hash, self.token_dtype]
        content += [f"{shard.sha256}:{shard.examples}" for shard in self.splits[split].shards]
        return hashlib.blake2b("\n".join(content).encode(), digest_size=16).hexdigest()


def _without_none(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Omits a field that is None, so older files without this field do not change."""
    return {key: value for key, value in fields.items() if key != name or value is not None}


def read_provenance(directory: epath.PathLike) -> Provenance:
    """Reads ``provenance.json`` of a dataset directory.

    Raises UserError if the directory is missing, the dataset is incomplete or from a newer version,
    or the file is damaged.
    """
    root = epath.Path(directory)
    path = root / PROVENANCE_NAME
    if not root.exists():
        raise UserError(
            "dataset.missing",
            f"no such directory{within(root)}. Make the dataset with `bert-jax examples`.",
            place=root,
        )
    if not path.exists():
        raise UserError(
            "dataset.incomplete",
            "found no provenance.json: no dataset, or unfinished. Run `bert-jax examples`.",
            place=root,
        )
    with _copy_again():
        content = read_json_object(path)
    version = content.get("format_version")
    if not isinstance(version, int):
        if (root / "config.yaml").exists():
            raise UserError.wrong("dataset.is_run", "a run directory", "a dataset", place=root)
        raise UserError(
            "dataset.no_format",
            "found no format_version. Copy this file again, or make the dataset again.",
            place=path,
        )
    if version > FORMAT_VERSION:
        raise UserError(
            "dataset.newer_format",
            f"found format_version {version}, allowed: up to {FORMAT_VERSION}. Upgrade bert-jax.",
            place=path,
        )
    refuse_changed(content, where=str(path))
    with _copy_again():
        return validate(Provenance, unsealed(content), source=str(path))


@contextlib.contextmanager
def _copy_again() -> Iterator[None]:
    """Adds advice to errors of a damaged ``provenance.json``."""
    try:
        yield
    except UserError as error:
        raise error.followed_by("; copy the file again, or make the dataset again") from None


def file_missing(path: epath.Path) -> UserError:
    """Returns the error for a missing file of a dataset."""
    return UserError(
        "dataset.file_missing",
        "missing. Copy this file again, or make the dataset again.",
        place=path,
    )


def wrong_size(path: epath.Path, found: int, *, expected: int) -> UserError:
    """Returns the error for a file whose size differs from its record."""
    return UserError(
        "dataset.file_size",
        f"damaged: found {found} bytes, expected {expected}. Copy this file again.",
        place=path,
    )


def split_unknown(place: epath.PathLike, split: str, splits: Collection[str]) -> UserError:
    """Returns the error for an unknown split, with the most similar name."""
    return UserError.unknown("dataset.split_unknown", split, splits, place=place)
