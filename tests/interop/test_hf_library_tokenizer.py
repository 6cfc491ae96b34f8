"""Tokenizers of the tokenizers library in Hugging Face's format, in both directions."""

from pathlib import Path

import jax
import numpy as np
import pytest
from transformers import AutoTokenizer, RobertaConfig

from bert_jax.interop.hf_tokenizer import write_hf_tokenizer
from bert_jax.text import load_tokenizer
from bert_jax.text.library_tokenizer import LibraryTokenizer
from bert_jax.verbs.export import export
from tests.interop.hf_checkpoints import fresh_run, import_run
from tests.text.library_tokenizers import KINDS, MODERNBERT_TEXTS, lines_of_scripts, saved


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("token_types", [False, True])
def test_auto_tokenizer_gives_the_same_ids_and_rows(
    kind: str, token_types: bool, tmp_path: Path
) -> None:
    first = KINDS[kind]()
    own = load_tokenizer(saved(kind, tmp_path / "theirs"))
    assert isinstance(own, LibraryTokenizer)
    written = tmp_path / "ours"
    written.mkdir()
    if kind == "roberta":  # AutoTokenizer must not choose RoBERTa's class by the model
        RobertaConfig().save_pretrained(written)
    write_hf_tokenizer(written, own, max_length=48, token_types=token_types)
    theirs = AutoTokenizer.from_pretrained(written)
    assert theirs.model_max_length == 48
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{name}_token_id") == getattr(first, f"{name}_token_id")
    lines = lines_of_scripts(60, seed=8, also=MODERNBERT_TEXTS)
    assert theirs(lines)["input_ids"] == first(lines)["input_ids"]
    pair = theirs("a dog", "barks (twice)")
    assert pair["input_ids"] == first("a dog", "barks (twice)")["input_ids"]
    masked = f"a {own.special_pieces.mask} barks"
    assert theirs(masked)["input_ids"] == first(masked)["input_ids"]
    assert ("token_type_ids" in pair) is token_types
    if token_types:
        b = len(own.encode("barks (twice)")) + 1
        assert pair["token_type_ids"] == [0] * (len(pair["input_ids"]) - b) + [1] * b
    assert load_tokenizer(written).hash == own.hash


def test_a_run_with_byte_level_bpe_survives_export_and_import(tmp_path: Path) -> None:
    own = load_tokenizer(saved("roberta", tmp_path / "tokenizer"))
    run = fresh_run(tmp_path / "run", own)
    export(str(tmp_path / "run"), str(tmp_path / "out"), to="hf")
    back = import_run(tmp_path / "out", tmp_path / "back")
    assert back.run.tokenizer.hash == own.hash
    jax.tree.map(np.testing.assert_array_equal, back.params, run.params)
