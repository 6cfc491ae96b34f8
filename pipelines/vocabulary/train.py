"""Trains a tokenizer on a bounded sample of a corpus."""

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from bert_jax.errors import SettingError, UserError, all_of, one_of
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.scripts import mixed_scripts
from bert_jax.pipelines.sources.sources import iter_text, need_data_libraries
from bert_jax.pipelines.vocabulary import algorithms
from bert_jax.pipelines.vocabulary.sample import MAX_PART_BYTES, sample_lines, sample_mixture
from bert_jax.section import ModelPathText, PathText, refuse_ignored
from bert_jax.text.basic_tokenizer import WordSplitter
from bert_jax.text.library_tokenizer import read_pipeline, without_surrogates
from bert_jax.text.load import load_tokenizer
from bert_jax.text.sentence_piece import SentencePieceTokenizer, prepare
from bert_jax.text.special_rows import ROLE_SETTINGS
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import SPECIAL_PIECES, reserved_pieces
from bert_jax.text.wordpiece import WordPieceTokenizer

# Maximum number of sampled lines. `cut_line` divides long lines, and each part counts as a line.
MAX_LINES: Final = 10_000_000
_LANE = 128  # the device pads a vocabulary to a multiple of this
_MARKS_LINES: Final = 20_000  # number of lines that `_lost_marks` reads
# Lowest share of accented letters for which a warning is printed. Vietnamese has 0.3, French 0.04
# and German 0.02.
_MARKS_SHARE: Final = 0.1


# Settings of training, which have no effect on an existing vocabulary.
_OF_TRAINING: Final = (
    *("algorithm", "size", "pad_to_128", "unused_slots", "lower_case", "strip_accents", "chinese"),
    "character_coverage",
)


class VocabSection(SourcesSection):
    """Settings of training a tokenizer, and of its text (`SourcesSection`).

    Attributes:
        output: tokenizer directory to write.
        algorithm: WordPiece; SentencePiece with unigram or byte-pair pieces; or byte-level BPE, as
            in RoBERTa and ModernBERT, which encodes any text without [UNK].
        size: exact number of ids, including special pieces and unused slots.
        pad_to_128: round ``size`` up to a multiple of 128, and fill it with up to 127 unused slots.
        unused_slots: number of ``[unusedN]`` pieces. With 99 or more, [UNK] is 100, [CLS] 101,
            [SEP] 102 and [MASK] 103, as in the 2018 vocabularies.
        lower_case: lower-case the text, in training and in use. The default is false with
            byte_bpe, otherwise true.
        strip_accents: drop accents. If None, ``lower_case`` decides.
        chinese: treat each CJK ideograph as a word (WordPiece only).
        character_coverage: share of the text's characters that become pieces. Not with byte_bpe,
            whose pieces are bytes.
        max_bytes: size of the sample in bytes of UTF-8. Peak memory of training, measured on 100 MB
            of English with a million rare words: 4 times this size with wordpiece, 6 times with
            bpe, 14 times with byte_bpe, 22 times with unigram.
        seed: seed of the sample.
        extend: a run directory or checkpoint whose vocabulary gets new words of the text, instead
            of training a tokenizer. ``output`` is then a new run directory. The settings of the
            tokenizer, from ``algorithm`` to ``character_coverage``, are the checkpoint's.
        new_pieces: maximum number of new words, with ``extend``.
    """

    output: PathText
    algorithm: Literal["wordpiece", "unigram", "bpe", "byte_bpe"] = "wordpiece"
    size: int = Field(default=30_522, ge=len(SPECIAL_PIECES) + 1, le=1_000_000)
    pad_to_128: bool = False
    unused_slots: int = Field(default=99, ge=0)
    lower_case: bool = True
    strip_accents: bool | None = None
    chinese: bool = True
    character_coverage: float = Field(default=0.9999, gt=0, le=1)
    max_bytes: int = Field(default=100_000_000, ge=MAX_PART_BYTES)
    seed: int = Field(default=0, ge=0)
    extend: ModelPathText | None = None
    new_pieces: int = Field(default=1000, ge=1, le=1_000_000)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_algorithm(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("algorithm") == "byte_bpe":
            return {"lower_case": False, **values}
        return values

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.extend is None:
            refuse_ignored(self, "new_pieces", allowed="extend")
        else:
            try:
                refuse_ignored(self, *_OF_TRAINING, allowed="extend null")
            except SettingError as error:
                raise SettingError(
                    "vocab.extend_setting",
                    f"the tokenizer of {self.extend} keeps its settings. Remove this setting.",
                    place=error.place,
                ) from None
        if self.algorithm != "wordpiece":
            refuse_ignored(self, "chinese", allowed="algorithm wordpiece")
        if self.algorithm == "byte_bpe":
            others = "algorithm wordpiece, unigram or bpe"
            refuse_ignored(self, "character_coverage", allowed=others)
        return self


def train_vocab(
    section: VocabSection, *, progress: Callable[[str], None] = lambda line: None
) -> Tokenizer:
    """Trains a tokenizer and writes its directory.

    Reads the corpus line by line: twice for a mixture of languages, otherwise once. Keeps only a
    bounded sample in memory. The same corpus and settings give the same tokenizer.

    Raises UserError if the input is missing, empty or not UTF-8, if ``size`` is too large for the
    text or too small for its characters, or if the output cannot be written.
    """
    need_data_libraries("vocab")
    lines = sample_text(section)
    if (warning := mixed_scripts(section, lines)) is not None:
        progress(warning)
    if _drops_accents(section) and (warning := _lost_marks(lines)) is not None:
        progress(warning)
    if section.algorithm == "wordpiece":
        tokenizer = _train_wordpiece(section, lines)
    elif section.algorithm == "byte_bpe":
        tokenizer = _train_byte_bpe(section, lines)
    else:
        tokenizer = _train_sentencepiece(section, section.algorithm, lines)
    tokenizer.save(section.output)
    return load_tokenizer(section.output)


def sample_text(section: VocabSection) -> list[str]:
    """Returns a bounded sample of the section's text. Raises UserError as `train_vocab`."""
    bounds = {"max_lines": MAX_LINES, "max_bytes": section.max_bytes}
    if section.mixture is None:
        lines = sample_lines(iter_text(section), seed=section.seed, **bounds)
        if not lines:
            raise UserError(
                "vocab.no_text", f"found no text in {one_of(section.names)}", place="input"
            )
        return lines
    languages = {
        str(language): functools.partial(iter_text, section, language=language)
        for language in section.by_language
    }
    smoothing = section.mixture.smoothing
    return sample_mixture(languages, smoothing=smoothing, seed=section.seed, **bounds)


def _train_wordpiece(section: VocabSection, lines: list[str]) -> Tokenizer:
    splitter = WordSplitter(
        lower_case=section.lower_case,
        strip_accents=section.strip_accents,
        chinese=section.chinese,
        final_sigma=False,  # as in the exported tokenizer.json
    )
    words = Counter(word for line in lines for word in splitter.split(line))
    lines.clear()  # frees memory: training needs only the counts
    characters = algorithms.covered_characters(words, coverage=section.character_coverage)
    alphabet = algorithms.character_pieces(characters, splitter.isolates)
    needed = len(reserved_pieces(section.unused_slots)) + len(alphabet)
    if needed > section.size:
        raise _too_small(section, needed)
    count = section.size - needed
    ranked = algorithms.rank_pieces(words, characters=characters, alphabet=alphabet, count=count)
    padding = _padding(section, found=needed + len(ranked))
    return WordPieceTokenizer(
        [*reserved_pieces(section.unused_slots + padding), *alphabet, *ranked],
        lower_case=section.lower_case,
        strip_accents=section.strip_accents,
        chinese=section.chinese,
        final_sigma=False,
    )


def _train_byte_bpe(section: VocabSection, lines: list[str]) -> Tokenizer:
    needed = len(reserved_pieces(section.unused_slots)) + algorithms.BYTES
    if needed > section.size:
        raise _too_small(section, needed)
    pipeline = algorithms.byte_pipeline(
        lower_case=section.lower_case, strip_accents=_drops_accents(section)
    )
    whole = map(without_surrogates, lines)
    merges = algorithms.train_byte_bpe(whole, pipeline, count=section.size - needed)
    lines.clear()
    spec = algorithms.byte_spec(pipeline, merges, unused_slots=section.unused_slots)
    padding = _padding(section, found=len(spec["model"]["vocab"]))
    if padding:
        slots = section.unused_slots + padding
        spec = algorithms.byte_spec(pipeline, merges, unused_slots=slots)
    settings = dict(zip(ROLE_SETTINGS, SPECIAL_PIECES, strict=True))
    return read_pipeline(spec, settings, source=section.output)


def _train_sentencepiece(
    section: VocabSection, algorithm: algorithms.SentencePieceAlgorithm, lines: list[str]
) -> Tokenizer:
    drops = _drops_accents(section)
    folded = [prepare(line, lower_case=section.lower_case, strip_accents=drops) for line in lines]
    lines.clear()

    def fit(size: int, slots: int) -> SentencePieceTokenizer:
        model = algorithms.train_sentencepiece(
            folded,
            algorithm=algorithm,
            size=size,
            unused_slots=slots,
            character_coverage=section.character_coverage,
            max_line_bytes=MAX_PART_BYTES,
        )
        return SentencePieceTokenizer(
            model, lower_case=section.lower_case, strip_accents=section.strip_accents
        )

    try:
        tokenizer = fit(section.size, section.unused_slots)
        found = tokenizer.vocab_size
        padding = _padding(section, found=found)
        if padding:  # SentencePiece cannot add slots to a trained model, so train again
            tokenizer = fit(found + padding, section.unused_slots + padding)
    except algorithms.VocabularyTooSmall as error:
        raise _too_small(section, error.args[0]) from None
    if tokenizer.vocab_size != found + padding:
        raise _too_large(section, tokenizer.vocab_size - padding)
    return tokenizer


def _drops_accents(section: VocabSection) -> bool:
    return section.lower_case if section.strip_accents is None else section.strip_accents


def _padding(section: VocabSection, *, found: int) -> int:
    """Returns the number of unused slots to add to ``found`` ids to reach the configured size."""
    wanted = -(-section.size // _LANE) * _LANE if section.pad_to_128 else section.size
    missing = wanted - found
    if missing and not (section.pad_to_128 and 0 < missing < _LANE):
        raise _too_large(section, found)
    return missing


def _too_large(section: VocabSection, found: int) -> UserError:
    return UserError(
        "vocab.too_large",
        f"found {section.size}, allowed: at most {found}, the pieces in {all_of(section.names)}",
        place="size",
    )


def _too_small(section: VocabSection, needed: int) -> UserError:
    return UserError(
        "vocab.too_small",
        f"found {section.size}, allowed: at least {needed} with these settings",
        place="size",
    )


def _lost_marks(lines: Iterable[str]) -> str | None:
    """Returns a warning if dropping accents changes at least a tenth of the letters, else None."""
    counts = Counter(chain.from_iterable(islice(lines, _MARKS_LINES)))
    letters = Counter({c: n for c, n in counts.items() if unicodedata.category(c)[0] in "LM"})
    changed = Counter({c: n for c, n in letters.items() if _is_changed(c)})
    share = changed.total() / max(letters.total(), 1)
    if share < _MARKS_SHARE:
        return None
    shown = " ".join(c for c, _ in changed.most_common(5))
    return (
        f"vocab.lower_case drops accents, which changes {share:.0%} of this text's letters "
        f"({shown} …; Hangul syllables are split). If accents distinguish words, set "
        "vocab.strip_accents: false"
    )


def _is_changed(character: str) -> bool:
    decomposed = unicodedata.normalize("NFD", character)
    return character != "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
