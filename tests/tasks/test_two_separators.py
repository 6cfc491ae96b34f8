"""Rows of RoBERTa's form, ``<s> A </s></s> B </s>``, in every task."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.rows.collate import assemble, collate_tokens
from bert_jax.feature_extraction.texts import InputText, encode
from bert_jax.model.text_head import TextSize
from bert_jax.tasks.choice import MultipleChoiceSection
from bert_jax.tasks.family import DataRequest, Family
from bert_jax.tasks.squad.family import SquadSection
from bert_jax.tasks.squad.offsets import OffsetEncoder
from bert_jax.tasks.table import TableSection
from bert_jax.tasks.tokens.family import TokenClassificationSection
from bert_jax.text import Tokenizer, load_tokenizer
from tests.tasks.squad_data import question, squad, write
from tests.text.library_tokenizers import KINDS, saved

A, B = "The tower (1889) was built", "in Élan, by  whom?"


@pytest.fixture(scope="module", params=["roberta", "camembert", "modernbert"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(saved(kind, tmp_path_factory.mktemp("tokenizer")))


def opened(section: object, tokenizer: Tokenizer, *, max_length: int = 60) -> Family:
    request = DataRequest(tokenizer, max_length, seed=0, roles=("train",))
    return section.open(request)  # pyright: ignore[reportAttributeAccessIssue]


def test_rows_equal_hugging_faces(kind: str, tokenizer: Tokenizer) -> None:
    theirs = KINDS[kind]()
    first, second = tokenizer.encode_batch([A, B])
    made = assemble(first, second, tokenizer, max_length=200)
    assert made.ids == theirs(A, B)["input_ids"]
    assert made.ids[made.second :] == [*second, tokenizer.special.sep]
    assert assemble(first, None, tokenizer, max_length=200).ids == theirs(A)["input_ids"]
    special = 3 + (kind != "modernbert")
    cut = assemble(first, second, tokenizer, max_length=20)
    assert (len(cut.ids), cut.cut) == (20, True)
    assert len(set(cut.ids) - set(first) - set(second)) <= 2
    assert cut.ids.count(tokenizer.special.sep) == special - 1
    whole = len(first) + len(second) + special
    assert assemble(first, second, tokenizer, max_length=whole) == made
    batch = collate_tokens([made.ids], [made.second], batch_size=1, length=whole, pad_id=1)
    assert batch["token_type_ids"].sum() == len(second) + 1


def test_features_leave_out_every_separator(tokenizer: Tokenizer) -> None:
    (text,) = encode([InputText(1, A, B)], tokenizer, size=TextSize(0, 200))
    kept = [text.ids[at] for at in text.text_positions]
    assert kept == [*tokenizer.encode(A), *tokenizer.encode(B)]
    starts = text.word_starts(tokenizer)
    assert starts[0]
    assert starts[len(tokenizer.encode(A))]


def test_tables_and_choices_count_the_separators(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(f'a,b,label\n"{A}","{B}",x\n"{B}","{A}",y\n')
    path = str(tmp_path / "train.csv")
    section = TableSection(train=path, dev=path, text="a", pair="b", label="label")
    split = opened(section, tokenizer, max_length=200).splits["train"]
    first, second = tokenizer.encode_batch([A, B])
    wanted = assemble(first, second, tokenizer, max_length=200).ids
    assert list(split.row(0).sequences[0]) == wanted
    assert split.lengths.tolist() == [len(wanted)] * 2
    (tmp_path / "choice.csv").write_text(f'q,c,d,label\n"{A}","{B}","{B}",0\n')
    section = MultipleChoiceSection(
        train=str(tmp_path / "choice.csv"), text="q", choices=("c", "d"), label="label"
    )
    split = opened(section, tokenizer, max_length=200).splits["train"]
    assert [list(ids) for ids in split.row(0).sequences] == [wanted] * 2
    assert split.lengths.tolist() == [len(wanted)]


def test_answers_of_squad_are_found_by_offsets(tokenizer: Tokenizer, tmp_path: Path) -> None:
    context = "The  tower of Paris (1889) was built in Élan,\n un\u00adknown 中国北京 by men. " * 3
    pieces = OffsetEncoder(tokenizer).encode(context)
    assert pieces.ids == tokenizer.encode(context)
    assert (np.diff(pieces.starts) >= 0).all()
    assert (np.diff(pieces.ends) >= 0).all()
    answers = ["1889", "tower of Paris", "Élan", "men"]
    asked = [question(text, "when?", (text, context.index(text))) for text in answers]
    path = write(tmp_path / "train.json", squad((context, asked)))
    section = SquadSection(train=path, max_query_length=8, stride=20)
    split = opened(section, tokenizer, max_length=50).splits["train"]
    query, special = tokenizer.encode("when?"), tokenizer.special
    between = [special.sep] * tokenizer.separators
    found = set()
    for index in range(len(split.lengths)):
        row = split.row(index)
        ids, start, end = list(row.sequences[0]), row.targets["start"], row.targets["end"]
        assert len(ids) == split.lengths[index] <= 50
        assert ids[: row.seconds[0]] == [special.cls, *query[:8], *between]
        assert ids[-1] == special.sep
        if end:
            text = tokenizer.decode(ids[start : end + 1]).strip()  # pyright: ignore
            found.add(text)
    assert len(found) >= len(answers) - 1  # pieces may be wider than the answer
    assert any("tower of Paris" in text for text in found)


def test_words_are_encoded_as_in_their_sentence(tokenizer: Tokenizer, tmp_path: Path) -> None:
    words = ["The", "tower", "of", "Élan", "(", "1889", ")"]
    (tmp_path / "train.txt").write_text(
        "".join(f"{word} {'B-A' if word == 'tower' else 'O'}\n" for word in words)
    )
    section = TokenClassificationSection(train=str(tmp_path / "train.txt"))
    row = opened(section, tokenizer, max_length=100).splits["train"].row(0)
    special = tokenizer.special
    whole = [special.cls, *tokenizer.encode(" ".join(words)), special.sep]
    assert list(row.sequences[0]) == whole
