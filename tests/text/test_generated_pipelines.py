"""Generated files: every accepted pipeline gives the library's ids and offsets; others are refused.

Each combination of a normalizer, a pre-tokenizer, a model with its options, added tokens and a
post-processor is written as a ``tokenizer.json`` and opened as a user's directory.
"""

import itertools
import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers

from bert_jax.errors import UserError
from bert_jax.text import load_tokenizer
from bert_jax.text.library_tokenizer import LibraryTokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *("the", "user", "of", "covid19", "in", "1984", "run", "don't", "Élan", "naïve", "größe"),
    *("Привет", "мир", "東京", "都", "हिन्दी", "café"),
]
TEXTS = [
    "the <e1>user</e1> of @USER in 1984, don't run!",
    "[SUBJ] runs.Run [subj] the_user, @USERS x@USER covid19 <E1>Élan</E1>",
    "  naïve   größe\tПривет, мир! 東京都 is हिन्दी  ",
    "größe<e1> Привет </e1>東京@USER都 สวัสดี 😀👍🏽 ½ ﬁn",
    "a  b\n\nc <e1><e1> [SUBJ][SUBJ] @USER.",
    "x" * 120 + " " + "ab" * 45 + " user-name e.g. 3.14",
    "",
    " ",
]  # none has a character of the table in docs/interop.md
ROLE_TEXTS = ["the [MASK] of [CLS][SEP]user[PAD]", "[UNK] [mask] [SEP]"]

NORMALIZERS: dict[str, Any] = {
    "none": None,
    "bert uncased": normalizers.BertNormalizer(lowercase=True),
    "bert cased": normalizers.BertNormalizer(lowercase=False),
    "bert accents": normalizers.BertNormalizer(lowercase=True, strip_accents=False),
    "bert ideographs": normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False),
    "bert unclean": normalizers.BertNormalizer(clean_text=False),
    "nfc": normalizers.NFC(),
    "folded": normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    ),
    "replace": normalizers.Sequence(
        [normalizers.BertNormalizer(), normalizers.Replace(Regex("[0-9]"), "0")]
    ),
    "strip": normalizers.Strip(),
}
BERT = pre_tokenizers.BertPreTokenizer()
SPACES = pre_tokenizers.WhitespaceSplit()
DIGITS = pre_tokenizers.Digits(individual_digits=True)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
PRE_TOKENIZERS: dict[str, Any] = {
    "none": None,
    "bert": BERT,
    "bert digits": pre_tokenizers.Sequence([BERT, DIGITS]),
    "whitespace": pre_tokenizers.Whitespace(),
    "spaces": SPACES,
    "spaces punctuation": pre_tokenizers.Sequence([SPACES, pre_tokenizers.Punctuation()]),
    "punctuation": pre_tokenizers.Punctuation(),
    "scripts": pre_tokenizers.Sequence([SPACES, pre_tokenizers.UnicodeScripts()]),
    "split": pre_tokenizers.Split(" ", "merged_with_previous"),
    "bytes": BYTES,
    "bytes prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "bytes digits": pre_tokenizers.Sequence([DIGITS, BYTES]),
    "bytes split": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "marks": pre_tokenizers.Metaspace(),
    "marks first": pre_tokenizers.Metaspace(prepend_scheme="first"),
    "marks joined": pre_tokenizers.Metaspace(split=False),
    "marks spaces": pre_tokenizers.Sequence([SPACES, pre_tokenizers.Metaspace()]),
    "marks other": pre_tokenizers.Metaspace(replacement="_"),
}
PROCESSORS = ["bert", "roberta", "template", "template bytes", "none", "bytes", "no separator"]
ADDED: dict[str, list[AddedToken]] = {
    "none": [],
    "special": [AddedToken(text, special=True) for text in ("<e1>", "</e1>", "[SUBJ]")],
    "words": [AddedToken("@USER"), AddedToken("covid19")],
    "spaces": [AddedToken("<e1>", lstrip=True), AddedToken("</e1>", rstrip=True)],
    "single": [AddedToken("@USER", single_word=True), AddedToken("run", single_word=True)],
    "normalized": [AddedToken("<E1>", normalized=True), AddedToken("[SUBJ]", normalized=True)],
    "exact": [AddedToken("<E1>", normalized=False), AddedToken("größe", normalized=False)],
    "of the vocabulary": [AddedToken("the"), AddedToken("user", lstrip=True, special=True)],
    "all": [
        AddedToken("<e1>", special=True, lstrip=True, rstrip=True, normalized=True),
        AddedToken("@USER", single_word=True, normalized=False),
        AddedToken("東京", special=True),
        AddedToken("  "),
    ],
}


@cache
def wordpieces() -> dict[str, int]:
    letters = sorted(
        {letter for text in [*TEXTS, *WORDS] for letter in text.lower() if letter > " "}
    )
    pieces = [*ROLES, *WORDS, *letters[:-8], *(f"##{each}" for each in letters[6:])]
    pieces += ["##@", "@@r", "<unk>", "1", "2", "Run", "run.", "the_user,"]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


@cache
def bpe(kind: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    pipeline = tokenizers.Tokenizer(models.BPE())
    pipeline.pre_tokenizer = BYTES if kind == "bytes" else pre_tokenizers.Metaspace()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else []
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if kind == "fallback" else []
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*ROLES, *fallback, "the", "user"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    pipeline.train_from_iterator([" ".join(WORDS)] * 3 + TEXTS[:2], trainer)
    model = json.loads(pipeline.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def model_of(name: str) -> Any:
    kind, _, option = name.partition(" ")
    if kind == "wordpiece":
        options: dict[str, Any] = {
            "short": {"max_input_chars_per_word": 7},
            "prefix": {"continuing_subword_prefix": "@@"},
            "unknown": {"unk_token": "<unk>"},
        }.get(option, {})
        return models.WordPiece(wordpieces(), **{"unk_token": "[UNK]", **options})
    if kind == "unigram":
        rng = random.Random(1)
        pieces = [
            *ROLES,
            *(f"<0x{byte:02X}>" for byte in range(256)),
            "the",
            "user",
            *bpe("marks")[0],
        ]
        scored = [(piece, -rng.random() * 9 - 1) for piece in dict.fromkeys(pieces)]
        return models.Unigram(scored, unk_id=1, byte_fallback=option == "fallback")
    if kind == "words":
        return models.WordLevel(wordpieces(), unk_token="[UNK]")
    vocabulary, merges = bpe(kind.removeprefix("bpe-"))
    options = {
        "dropout": {"dropout": 0.4},
        "whole": {"ignore_merges": True},
        "unknown": {"unk_token": "[UNK]", "fuse_unk": True},
        "fallback": {"unk_token": "[UNK]", "byte_fallback": True},
        "suffix": {"end_of_word_suffix": "</w>"},
    }.get(option, {})
    return models.BPE(vocabulary, merges, **options)


MODELS = [
    *("wordpiece", "wordpiece short", "wordpiece prefix", "wordpiece unknown"),
    *("bpe-bytes", "bpe-bytes dropout", "bpe-bytes whole", "bpe-bytes suffix"),
    *("bpe-marks", "bpe-marks unknown", "bpe-fallback fallback"),
    *("unigram", "unigram fallback", "words"),
]


def processor_of(name: str, ids: Any) -> Any:
    cls, sep = (("[CLS]", ids("[CLS]")), ("[SEP]", ids("[SEP]")))
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]" if name != "no separator" else "[CLS] $A",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if name != "no separator" else "[CLS] $A $B:1",
        special_tokens=[cls, sep],
    )
    return {
        "bert": processors.BertProcessing(sep, cls),
        "roberta": processors.RobertaProcessing(sep, cls),
        "template bytes": processors.Sequence([processors.ByteLevel(), template]),
        "bytes": processors.ByteLevel(),
        "none": None,
    }.get(name, template)


def combinations() -> list[tuple[str, ...]]:
    """Returns all pairs of a pre-tokenizer and a model, and others of published files."""
    rng = random.Random(7)
    parts = [*NORMALIZERS], [*ADDED], PROCESSORS[:4]
    drawn = [
        (rng.choice(parts[0]), split, model, rng.choice(parts[1]), rng.choice(parts[2]))
        for split, model in itertools.product(PRE_TOKENIZERS, MODELS)
        for _ in range(2)
    ]
    bert = itertools.product([*NORMALIZERS][1:5], ["bert"], MODELS[:2], ADDED, ["bert", "template"])
    byte_level = itertools.product(["none", "nfc"], ["bytes"], MODELS[4:7], ADDED, ["roberta"])
    rows = itertools.product(
        ["bert cased"], ["bert", "bytes"], ["wordpiece", "bpe-bytes"], ["none"], PROCESSORS
    )
    return [*dict.fromkeys([*drawn, *bert, *byte_level, *rows])]


def build(parts: tuple[str, ...]) -> tokenizers.Tokenizer:
    normalizer, split, model, added, processor = parts
    pipeline = tokenizers.Tokenizer(model_of(model))
    if NORMALIZERS[normalizer] is not None:
        pipeline.normalizer = NORMALIZERS[normalizer]
    if PRE_TOKENIZERS[split] is not None:
        pipeline.pre_tokenizer = PRE_TOKENIZERS[split]
    pipeline.add_special_tokens(ROLES)
    pipeline.add_tokens(ADDED[added])
    rows = processor_of(processor, pipeline.token_to_id)
    if rows is not None:
        pipeline.post_processor = rows
    return pipeline


def trimmed(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found = []
    for start, end in offsets:
        inside = [at for at in range(start, end) if not text[at].isspace()]
        found.append((inside[0], inside[-1] + 1) if inside else (end, end))
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], str]:
    """The tokenizer or the error's key of each combination, after the comparison."""
    directory, found = tmp_path_factory.mktemp("pipeline"), dict[tuple[str, ...], str]()
    roles = {f"{role[1:-1].lower()}_token": role for role in ROLES}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    for parts in combinations():
        found[parts] = compared(build(parts), directory, parts)
    return found


def compared(theirs: tokenizers.Tokenizer, directory: Path, parts: tuple[str, ...]) -> str:
    """Compares all ids and offsets. Returns the kind of our tokenizer, or the key of its error."""
    (directory / "tokenizer.json").write_text(theirs.to_str())
    try:
        ours = load_tokenizer(directory)
    except UserError as error:
        return error.key
    if getattr(theirs.model, "dropout", None):
        theirs.model.dropout = None
    for text in TEXTS:
        wanted = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == wanted.ids, (parts, text, wanted.tokens)
        if isinstance(ours, LibraryTokenizer):
            offsets = ours.encode_offsets(text).offsets
            assert trimmed(text, offsets) == trimmed(text, wanted.offsets), (parts, text)
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    special = ours.special
    for text in ROLE_TEXTS:
        assert {special.cls, special.sep, special.pad, special.mask}.isdisjoint(ours.encode(text))
        if "[MASK]" in text:
            assert special.mask in ours.encode_masked(text)
    return type(ours).__name__


def test_every_pipeline_is_equal_or_refused(outcomes: dict[tuple[str, ...], str]) -> None:
    counts = Counter(outcomes.values())
    print(f"{len(outcomes)} pipelines:", dict(counts.most_common()))
    equal = counts["WordPieceTokenizer"] + counts["LibraryTokenizer"]
    assert len(outcomes) >= 600
    assert counts["WordPieceTokenizer"] >= 10
    assert equal >= 250
    assert {*counts} - {"WordPieceTokenizer", "LibraryTokenizer"} == {
        *("tokenizer.model_type", "tokenizer.model_option", "tokenizer.pre_tokenizer"),
        *("tokenizer.rows", "tokenizer.template"),
    }


def test_our_own_wordpiece_runs_only_berts_pipeline(
    outcomes: dict[tuple[str, ...], str],
) -> None:
    own = [parts for parts, kind in outcomes.items() if kind == WordPieceTokenizer.__name__]
    assert {split for _, split, *_ in own} == {"bert"}
    assert {added for *_, added, _ in own} == {"none"}
    assert {model for _, _, model, *_ in own} == {"wordpiece", "wordpiece short"}
    assert {normalizer for normalizer, *_ in own} == {*[*NORMALIZERS][1:5]}
