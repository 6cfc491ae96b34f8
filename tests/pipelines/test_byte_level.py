"""Byte-level BPE from text to rows, and examples with two separators."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import parse_config
from bert_jax.data.dataset.reader import Dataset, open_dataset
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.pipelines.examples import ExamplesSection, make_examples
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.report.dataset.sample import sample_example
from bert_jax.text import Tokenizer, load_tokenizer
from tests.project import refuses
from tests.text.library_tokenizers import lines_of_scripts, saved

LENGTH = 40


def write_text(path: Path) -> None:
    """Writes 30 documents of 8 sentences in many scripts."""
    words = " ".join(lines_of_scripts(400, seed=3, also=[])).split()
    rows = (words[at : at + 7] for at in range(0, 30 * 8 * 7, 7))
    lines = [f"Line {number}: {' '.join(row)}." for number, row in enumerate(rows)]
    documents = ["\n".join(lines[at : at + 8]) for at in range(0, len(lines), 8)]
    path.write_text("\n\n".join(documents), encoding="utf-8")


def make(root: Path, tokenizer: Path, *, length: int = LENGTH, kind: str = "nsp") -> Dataset:
    section = ExamplesSection(
        input=(str(root / "text.txt"),),
        tokenizer=str(tokenizer),
        output=str(root / f"dataset-{kind}"),
        kind=kind,  # pyright: ignore[reportArgumentType]
        max_seq_length=length,
        **({"dupe_factor": 2} if kind == "nsp" else {}),  # pyright: ignore[reportArgumentType]
        validation_fraction=0.0,
        workers=1,
    )
    make_examples(section)
    return open_dataset(root / f"dataset-{kind}", "train")


def trained(root: Path, **settings: object) -> Tokenizer:
    write_text(root / "text.txt")
    values = {"input": [str(root / "text.txt")], "output": str(root / "tokenizer"), "size": 700}
    return train_vocab(VocabSection.model_validate(values | {"algorithm": "byte_bpe", **settings}))


def test_a_trained_tokenizer_makes_examples_and_masks_whole_words(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path)
    assert not tokenizer.lower_case
    special, dataset = tokenizer.special, make(tmp_path, tmp_path / "tokenizer")
    masking = MaskingSection(unit="whole_word", replace_with_mask=1.0, replace_with_random=0.0)
    rows = MaskingTransform.from_tokenizer(tokenizer, seq_length=LENGTH, masking=masking)
    for index, example in enumerate(dataset.__getitems__(range(20))):
        assert special.unk not in example.input_ids
        text = tokenizer.decode(example.input_ids.tolist())
        assert text.startswith("[CLS]")
        row = rows(example, stream(0, "mask", index))
        masked = rows.masker(example.input_ids, stream(0, "mask", index))
        assert np.array_equal(row["input_ids"][: len(masked.input_ids)], masked.input_ids)
        chosen = {*masked.positions.tolist()}
        for at in range(1, len(example.input_ids)):
            pieces = example.input_ids[at - 1 : at + 1].tolist()
            letters = [text.strip() for text in tokenizer.texts(pieces)]
            # Two pieces of letters without a space between them are in the same word.
            joined = tokenizer.texts(pieces)[1][:1] != " " and all(map(str.isalpha, letters))
            if joined and all(map(str.isascii, letters)):
                assert (at in chosen) == (at - 1 in chosen)
        shown = sample_example(example, masked, number=index, kind="nsp", tokenizer=tokenizer)
        assert len(shown.spans) == 2
        assert not any("Ġ" in piece.text for span in shown.spans for piece in span)


def test_sentences_of_a_document_keep_the_space_between_them(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path)
    dataset = make(tmp_path, tmp_path / "tokenizer", length=600, kind="doc_sentences")
    lines = (tmp_path / "text.txt").read_text(encoding="utf-8").split("\n\n")
    ids = {tuple(tokenizer.encode(" ".join(document.split("\n")))) for document in lines}
    found = [tuple(e.input_ids[1:-1].tolist()) for e in dataset.__getitems__(range(len(dataset)))]
    whole = [example for example in found if len(example) < 598]
    assert whole
    assert ids.issuperset(whole)


@pytest.mark.parametrize("lower_case", [False, True])
def test_casing_of_byte_level_bpe(lower_case: bool, tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, lower_case=lower_case)
    text = "Élan ÑANDÚ"
    assert tokenizer.decode(tokenizer.encode(text)) == ("elan nandu" if lower_case else text)
    composed, divided = "é", "e\u0301"
    assert tokenizer.encode(composed) == tokenizer.encode(divided)


@pytest.mark.parametrize(
    ("name", "value"), [("chinese", False), ("character_coverage", 0.5)], ids=str
)
def test_settings_without_effect_are_refused(name: str, value: object) -> None:
    section = {"input": ["a"], "output": "b", "algorithm": "byte_bpe", name: value}
    with refuses("setting.ignored", found=str(value)):
        parse_config({"vocab": section}, source="test")


def test_pairs_have_as_many_separators_as_the_tokenizer_says(tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt")
    tokenizer = load_tokenizer(saved("roberta", tmp_path / "tokenizer"))
    sep = tokenizer.special.sep
    dataset = make(tmp_path, tmp_path / "tokenizer")
    lengths = []
    for example in dataset.__getitems__(range(len(dataset))):
        ids, at = example.input_ids, example.first_length
        assert np.flatnonzero(ids == sep).tolist() == [at - 2, at - 1, len(ids) - 1]
        assert ids[0] == tokenizer.special.cls
        assert at < len(ids) - 1
        lengths.append(len(ids))
    assert max(lengths) == LENGTH
    with refuses("pairing.max_seq_length", found=5, allowed=6):
        make(tmp_path, tmp_path / "tokenizer", length=5)
    # A separator between two documents of one span stays single.
    single = make(tmp_path, tmp_path / "tokenizer", length=300, kind="full_sentences")
    assert all(
        following - before > 1
        for example in single.__getitems__(range(len(single)))
        for before, following in itertools.pairwise(np.flatnonzero(example.input_ids == sep))
    )
