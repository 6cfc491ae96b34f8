"""`fill-mask` with every kind of vocabulary that `vocab` trains, and with its export."""

from pathlib import Path

import pytest
import transformers

from bert_jax.text import load_tokenizer
from bert_jax.verbs.fill_mask import fill_mask
from tests.interop.hf_checkpoints import fresh_run
from tests.project import ok, write_config

SIZE = 700
WORDS = ["if", "the", "function", "is"]  # pieces of every vocabulary


@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram", "bpe", "byte_bpe"])
def test_a_mask_takes_the_place_of_a_word(algorithm: str, project: Path, tmp_path: Path) -> None:
    """The candidates are those of transformers' own pipeline on the exported model."""
    values = {
        "input": [str(project / "text" / "*.txt")],
        "output": str(tmp_path / "tokenizer"),
        "algorithm": algorithm,
        "size": SIZE,
    }
    ok("vocab", write_config(tmp_path / "vocab.yaml", {"vocab": values}))
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    whole, mask, masked = tokenizer.encode(" ".join(WORDS)), tokenizer.special.mask, []
    assert len(whole) == len(WORDS)
    for at in range(len(WORDS)):
        masked.append(" ".join([*WORDS[:at], "[MASK]", *WORDS[at + 1 :]]))
        assert tokenizer.encode_masked(masked[at]) == [*whole[:at], mask, *whole[at + 1 :]]

    fresh_run(tmp_path / "run", tokenizer)
    ok("export", tmp_path / "run", tmp_path / "exported", "--to", "hf")
    assert load_tokenizer(tmp_path / "exported").hash == tokenizer.hash
    theirs = transformers.pipeline("fill-mask", str(tmp_path / "exported"), top_k=SIZE)
    for text, (own,) in fill_mask(str(tmp_path / "run"), masked):
        ordinary = [each for each in theirs(text) if each["token"] not in tokenizer.special]
        pieces = tokenizer.texts([each["token"] for each in ordinary])
        assert [each.piece for each in own] == pieces[: len(own)]
        total = sum(each["score"] for each in ordinary)
        chances = [each["score"] / total for each in ordinary[: len(own)]]
        assert [each.probability for each in own] == pytest.approx(chances, rel=1e-3)
