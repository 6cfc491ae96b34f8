"""`bert-jax vocab --extend`: new words for a checkpoint."""

import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.rows.collate import collate_tokens
from bert_jax.runs.run_directory import read_run_provenance
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.library_tokenizer import LibraryTokenizer
from bert_jax.text.sentence_piece import SentencePieceTokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.interop.hf_checkpoints import Imported, fresh_run, read_run
from tests.project import ok, refused, says, write_config
from tests.text.library_tokenizers import lines_of_scripts, saved
from tests.text.test_sentence_piece import train as train_sentencepiece

NEW = ["kubernetes", "naïveté", "Привет", "podman"]


def tokenizer_of(kind: str, root: Path) -> Tokenizer:
    if kind == "wordpiece":
        letters = "abcdefghijklmnopqrstuvwxyzïéПривет"
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", *letters, *".,()'-"]
        pieces += [f"##{letter}" for letter in letters]
        pieces = list(dict.fromkeys(pieces))
        pieces += [f"[unused{number}]" for number in range(127 - len(pieces))]  # 128 rows
        return WordPieceTokenizer(pieces, lower_case=False)
    return load_tokenizer(saved(kind, root / "tokenizer"))


@pytest.fixture(scope="module", params=["wordpiece", "roberta", "modernbert"])
def extension(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Imported, Imported]:
    """A run, and the run with new words."""
    root = tmp_path_factory.mktemp(request.param)
    old = fresh_run(root / "run", tokenizer_of(request.param, root))
    rng = random.Random(0)
    words = [word for number, word in enumerate(NEW) for _ in range(40 - 8 * number)]
    # A piece that only follows other pieces cannot become a new piece.
    tokenizer = old.run.tokenizer
    pieces = {*tokenizer.pieces(range(tokenizer.vocab_size))}
    words += [
        p for p in sorted(pieces) if p.isalpha() and p.isascii() and f"Ġ{p}" not in pieces
    ] * 90
    rng.shuffle(words)
    rare = "pneumonoultramicroscopic"
    lines = [f"the {word}, ({word}) {word}'s {rare}{number}." for number, word in enumerate(words)]
    (root / "domain.txt").write_text("\n".join([*lines, rare]), encoding="utf-8")
    section = {"input": [str(root / "domain.txt")], "output": str(root / "new"), "new_pieces": 3}
    file = write_config(root / "vocab.yaml", {"vocab": section})
    said = ok("vocab", file, "--extend", root / "run")
    assert "kubernetes" in said
    new = read_run(root / "new")
    facts = read_run_provenance(root / "new")["pieces_per_word"]
    for name, tokenizer in (("before", old.run.tokenizer), ("after", new.run.tokenizer)):
        pieces = sum(len(tokenizer.encode(line)) for line in [*lines, rare])
        assert facts[name] == pytest.approx(pieces / (5 * len(lines) + 1))
        assert f"{facts[name]:.3f}" in said
    return old, new


def test_the_words_that_save_most_pieces_are_new_pieces(
    extension: tuple[Imported, Imported],
) -> None:
    old, new = (each.run.tokenizer for each in extension)
    assert new.vocab_size == old.vocab_size + 3
    assert new.pieces(range(old.vocab_size)) == old.pieces(range(old.vocab_size))
    added = new.pieces(range(old.vocab_size, new.vocab_size))
    assert set(added) == {"kubernetes", "naïveté", "Привет"}
    assert new.special == old.special
    for number, word in enumerate(added, start=old.vocab_size):
        assert number in new.encode(f"the ({word}) .")
        assert new.encode(f"the {word}")[-1] == number
        assert not new.is_continuation[number]
    assert new.decode(new.encode("the kubernetes the")) == "the kubernetes the"


def test_other_words_keep_their_pieces(extension: tuple[Imported, Imported]) -> None:
    old, new = (each.run.tokenizer for each in extension)
    lines = lines_of_scripts(200, seed=9, also=["xkubernetes", "podman"])
    if isinstance(new, LibraryTokenizer):  # a longer word of WordPiece may begin with a new piece
        lines += ["kubernetesx don't kubernetes2 kubernetes_"]
    assert new.encode_batch(lines) == old.encode_batch(lines)
    if isinstance(new, LibraryTokenizer):
        # Around a new word, only the word and the white space before it change.
        text = "the (kubernetes)  pods, \n kubernetes's 'naïveté-x' Привет"
        was, now = old.decode(old.encode(text)), new.encode(text)
        assert [new.texts([id])[0] for id in now if id >= old.vocab_size] == [
            *("kubernetes", "kubernetes", "naïveté", "Привет")
        ]
        spelled = "".join(new.texts(now)).replace(" ", "").replace("\n", "")
        assert spelled == was.replace(" ", "").replace("\n", "")


def test_new_rows_are_means_and_all_others_stay(extension: tuple[Imported, Imported]) -> None:
    old, new = extension
    pieces = old.run.tokenizer.vocab_size
    assert new.run.architecture.vocab_size == pieces + 3

    flat = [dict(jax.tree_util.tree_leaves_with_path(each.params)) for each in (old, new)]
    assert flat[0].keys() == flat[1].keys()
    grown = 0
    for path, was in flat[0].items():
        now = flat[1][path]
        if len(was) != old.run.architecture.padded_vocab_size:
            np.testing.assert_array_equal(now, was)
            continue
        grown += 1
        assert len(now) == new.run.architecture.padded_vocab_size
        np.testing.assert_array_equal(now[:pieces], was[:pieces])
        for number, word in enumerate(new.run.tokenizer.pieces(range(pieces, pieces + 3)), pieces):
            spelled = old.run.tokenizer.encode_parts([["", word]])[0][1]
            np.testing.assert_array_equal(now[number], was[spelled].mean(axis=0))
        assert not now[pieces + 3 :].any()
    assert grown == 2  # the embedding, and the bias of the MLM head
    ids = old.run.tokenizer.encode("the tower")
    batch = collate_tokens([ids], batch_size=1, length=16, pad_id=old.run.tokenizer.special.pad)
    hidden = [
        each.model.hidden(jax.tree.map(jnp.asarray, batch), dropout_key=None) for each in (old, new)
    ]
    np.testing.assert_array_equal(hidden[1], hidden[0])


def test_tokenizers_that_cannot_be_extended_exactly_are_refused(tmp_path: Path) -> None:
    (tmp_path / "domain.txt").write_text("kubernetes\n" * 9)
    section = {"input": [str(tmp_path / "domain.txt")], "output": str(tmp_path / "new")}
    file = write_config(tmp_path / "vocab.yaml", {"vocab": section})
    own = SentencePieceTokenizer(train_sentencepiece("unigram"), lower_case=True)
    theirs = load_tokenizer(saved("xlm_roberta", tmp_path / "t"))
    for name, tokenizer in (("sentencepiece", own), ("xlm", theirs)):
        fresh_run(tmp_path / name, tokenizer)
        refusal = refused("vocab", file, "--extend", tmp_path / name)
        assert refusal.key == "vocab.extend_kind"
        says(refusal, place="vocab.extend")
    assert not (tmp_path / "new").exists()


def test_settings_of_training_have_no_effect_on_a_vocabulary(tmp_path: Path) -> None:
    section = {"input": ["a"], "output": str(tmp_path / "new")}
    for name, change, key in (
        ("size", {"extend": "runs/a", "size": 2000}, "vocab.extend_setting"),
        ("new_pieces", {"new_pieces": 5}, "setting.ignored"),
    ):
        file = write_config(tmp_path / "vocab.yaml", {"vocab": section | change})
        refusal = refused("vocab", file)
        assert refusal.key == key
        says(refusal, place=f"{file}: vocab.{name}")


def test_a_text_without_new_words_is_refused(tmp_path: Path) -> None:
    fresh_run(tmp_path / "run", tokenizer_of("wordpiece", tmp_path))
    (tmp_path / "domain.txt").write_text("the the the 12345 \n" * 9)
    section = {"input": [str(tmp_path / "domain.txt")], "output": str(tmp_path / "new")}
    file = write_config(tmp_path / "vocab.yaml", {"vocab": section})
    assert refused("vocab", file, "--extend", tmp_path / "run").key == "vocab.nothing_new"
