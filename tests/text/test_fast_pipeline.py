"""Byte-level BPE by fastokens: the ids of the tokenizers library, or the library itself."""

import io
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from bert_jax.narration import speaking
from bert_jax.text import library_tokenizer, load_tokenizer
from bert_jax.text.fast_pipeline import FastPipeline
from bert_jax.text.library_tokenizer import LibraryTokenizer, read_pipeline
from tests.text.library_tokenizers import (
    MODERNBERT_TEXTS,
    SPECIAL_TEXTS,
    lines_of_scripts,
    saved,
)
from tests.text.test_cached_words import ODD

ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NORMALIZERS: list[Any] = [
    *(None, normalizers.NFC(), normalizers.Lowercase(), normalizers.NFD()),
    normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
    normalizers.Sequence([normalizers.Lowercase(), normalizers.NFC()]),
]
ADDED = ["<e1>", "</e1>", "ab", "  ", "    ", " a", "a b", "É", "e\u0301", "\n", "東", "'s", "[SE"]
LINES = lines_of_scripts(300, seed=21, also=[*SPECIAL_TEXTS, *MODERNBERT_TEXTS, *ADDED])


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    """fastokens opens at the first batch, not after a megabyte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_tokenizer, "WORTH", 0)
        yield


@cache
def model(size: int, *, whole: bool = True) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Trains byte-level BPE, with all bytes or only those of its text."""
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if whole else [],
        special_tokens=ROLES,
        show_progress=False,
    )
    text = lines_of_scripts(200, seed=size, also=ADDED) if whole else ["the cat sat"]
    pipeline.train_from_iterator(text, trainer)
    found = json.loads(pipeline.to_str())["model"]
    return found["vocab"], [tuple(merge) for merge in found["merges"]]


def build(
    vocabulary: tuple[dict[str, int], list[tuple[str, str]]],
    *,
    normalizer: Any = None,
    added: list[AddedToken] | tuple[()] = (),
    prefix: bool = False,
    **options: Any,
) -> LibraryTokenizer:
    """Opens a pipeline as a user's file."""
    pipeline = Tokenizer(models.BPE(*vocabulary, **options))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if normalizer is not None:
        pipeline.normalizer = normalizer
    pipeline.add_special_tokens([*ROLES[:4], AddedToken("[MASK]", special=True, lstrip=True)])
    pipeline.add_tokens([*added])
    roles = {f"{role[1:-1].lower()}_token": role for role in ROLES}
    found = json.loads(pipeline.to_str())
    return read_pipeline(found, {**roles, "separators": 1}, source="tokenizer.json")


def one_by_one(tokenizer: LibraryTokenizer, texts: list[str]) -> list[list[int]]:
    """Returns the ids of each text, always by the library."""
    return [tokenizer.encode(text) for text in texts]


TEXT = st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"])))
PART = st.one_of(TEXT, st.sampled_from([*ADDED, *ROLES, " ", "ab"]), st.sampled_from(LINES))
FLAGS = ("lstrip", "single_word", "normalized", "special", "rstrip")
TOKEN = st.builds(
    lambda content, flags: AddedToken(content, **flags),
    st.one_of(st.sampled_from(ADDED), st.text(st.sampled_from(ODD), min_size=1, max_size=4)),
    st.fixed_dictionaries(
        dict.fromkeys(FLAGS, st.booleans()) | {"rstrip": st.sampled_from([False] * 9 + [True])}
    ),
)


@settings(max_examples=30, deadline=None)
@given(
    size=st.sampled_from([280, 400, 900]),
    normalizer=st.sampled_from(NORMALIZERS),
    added=st.lists(TOKEN, max_size=4, unique_by=lambda token: token.content),
    prefix=st.booleans(),
    whole=st.booleans(),
    texts=st.lists(st.lists(PART, max_size=6).map("".join), max_size=30),
)
def test_any_pipeline_and_text_has_the_librarys_ids(
    size: int,
    normalizer: Any,
    added: list[AddedToken],
    prefix: bool,
    whole: bool,
    texts: list[str],
) -> None:
    ours = build(
        model(size),
        normalizer=normalizer,
        added=added,
        prefix=prefix,
        ignore_merges=whole,
    )
    wanted = one_by_one(ours, texts)
    assert ours.encode_batch(texts) == wanted
    starts = ours.encode_starts(texts, 3)
    assert [ids.tolist() for ids in starts] == wanted
    assert {ids.dtype for ids in starts} <= {np.dtype(np.int32)}
    event("fastokens" if ours._fast else "tokenizers")


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_published_pipelines_are_run_by_fastokens(kind: str, tmp_path: Path) -> None:
    own = load_tokenizer(saved(kind, tmp_path))
    assert isinstance(own, LibraryTokenizer)
    lines = lines_of_scripts(1000, seed=22, also=[*SPECIAL_TEXTS, *MODERNBERT_TEXTS])
    lines += ["half \ud83d surrogate", "", "東" * 50_000, " " * 3000, " ".join(lines)]
    assert own.encode_batch(lines) == one_by_one(own, lines)
    assert isinstance(own._fast, FastPipeline)


def test_a_new_word_and_other_added_tokens_are_run_by_fastokens() -> None:
    own = build(model(900), added=[AddedToken(text) for text in ADDED]).with_words(
        ["covid", "東京"]
    )
    texts = ["a covid  b covid19 東京 東京都", *LINES]
    assert own.encode_batch(texts) == one_by_one(own, texts)
    assert isinstance(own._fast, FastPipeline)


def test_other_ids_or_an_error_leave_the_text_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: FastPipeline, texts: list[str]) -> list[np.ndarray]:
        return [ids[::-1] for ids in right(self, texts)]

    right = FastPipeline.encode
    for tokenizer, line in (
        (build(model(400, whole=False), unk_token="[UNK]"), "cannot (model error: byte 0x"),
        (build(model(400)), "fastokens gives some texts other ids"),
    ):
        printed = io.StringIO()
        with speaking(Console(file=printed, width=200)):
            assert tokenizer.encode_batch(LINES) == one_by_one(tokenizer, LINES)
            tokenizer.encode_batch(LINES)
        assert line in printed.getvalue()
        assert printed.getvalue().count("\n") == 1
        monkeypatch.setattr(FastPipeline, "encode", wrong)


def test_it_opens_after_a_megabyte_and_only_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(library_tokenizer, "WORTH", 5000)
    own, texts = build(model(400)), ["the cat sat on the mat"] * 100
    own.encode_batch(texts)
    own.encode_batch(texts)
    assert "_fast" not in vars(own)
    own.encode_batch(texts)
    assert isinstance(own._fast, FastPipeline)
    monkeypatch.setitem(sys.modules, "fastokens", None)
    without = build(model(400))
    assert without.encode_batch(texts * 3) == own.encode_batch(texts * 3)
    assert without._fast is None


WORKER = """
import pickle, psutil, sys
from bert_jax.text import library_tokenizer
library_tokenizer.WORTH = 0
tokenizer, texts = pickle.load(sys.stdin.buffer)
threads = psutil.Process().num_threads()
found = tokenizer.encode_batch(texts), tokenizer._fast is not None
more = psutil.Process().num_threads() - threads
sys.stdout.buffer.write(pickle.dumps((*found, more)))
"""


def test_a_worker_process_encodes_alike_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.delenv("FASTOKENS_BPE_THREADS", raising=False)
    own, texts = build(model(400)), ["東" * 300_000, *LINES]
    ran = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps((own, texts)),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert pickle.loads(ran.stdout) == (one_by_one(own, texts), True, 0)
