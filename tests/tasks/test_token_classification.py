import itertools
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.config import parse_config
from bert_jax.tasks.family import NO_LABEL, DataRequest, Encoded, Family, Record
from bert_jax.tasks.tokens.family import TokenClassificationSection, TokenSplit
from bert_jax.tasks.tokens.windows import cut_windows
from bert_jax.text import Tokenizer
from bert_jax.verbs.finetune import with_tables
from tests.project import refuses
from tests.tasks.sequences import small_tokenizer

TRAIN = "the O\nold B-A\ndogs I-A\n\nsaw O\nunseen B-B\nmill O\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def open_task(
    directory: Path,
    tokenizer: Tokenizer,
    *roles: str,
    max_length: int = 16,
    labels: tuple[str, ...] | None = None,
    texts: dict[str, str],
    **settings: Any,
) -> Family:
    """Writes the files of a task to a directory and opens them."""
    paths = {name: str(directory / f"{name}.txt") for name in texts}
    for name, text in texts.items():
        Path(paths[name]).write_bytes(text.encode())
    request = DataRequest(tokenizer, max_length, seed=0, roles=roles, labels=labels)
    return TokenClassificationSection(**(paths | settings)).open(request)


def one_hot(ids: np.ndarray, count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[ids]


def predict(family: Family, split: TokenSplit) -> list[Record]:
    """Returns the records of a model that predicts label ``id % labels`` for each piece."""
    count = len(family.heads.labels)
    rows = range(len(split.lengths))
    ids = [np.asarray(split.row(index).sequences[0]) for index in rows]
    return split.records([split.reduce(n, one_hot(ids[n] % count, count)) for n in rows])


def read_labels(family: Family, row: Encoded) -> list[str | None]:
    ids = np.asarray(row.targets["labels"])
    return [None if label == NO_LABEL else family.heads.labels[label] for label in ids.tolist()]


def test_each_words_first_piece_has_its_label(tmp_path: Path, tokenizer: Tokenizer) -> None:
    family = open_task(tmp_path, tokenizer, "train", texts={"train": TRAIN})
    split = family.splits["train"]
    assert family.heads.task == "token_classification"
    assert family.heads.labels == ("B-A", "B-B", "I-A", "I-B", "O")
    assert split.examples == 2
    assert split.lengths.tolist() == [6, 6]
    row = split.row(0)
    assert tokenizer.pieces(row.sequences[0]) == ["[CLS]", "the", "old", "dog", "##s", "[SEP]"]
    assert row.seconds == [6]
    assert read_labels(family, row) == [None, "O", "B-A", "I-A", None, None]
    assert np.asarray(row.targets["labels"]).dtype == np.int32
    assert read_labels(family, split.row(1)) == [None, "O", "B-B", None, "O", None]
    assert split.lengths.dtype == np.int32


WORDS = st.sampled_from(["the", "dogs", "zzz", "unseen", "mill", "\x01", "old-river.", "-" * 30])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=30), min_size=1, max_size=4),
    st.integers(8, 20),
    st.integers(1, 6),
)
def test_every_word_is_learned_and_predicted_once(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Tokenizer,
    sentences: list[list[str]],
    max_length: int,
    stride: int,
) -> None:
    tags = ["NN", "VB", "IN"]
    labels = [[tags[i % 3] for i in range(len(words))] for words in sentences]
    text = "\n".join(
        "".join(f"{a} {b}\n" for a, b in zip(words, names, strict=True))
        for words, names in zip(sentences, labels, strict=True)
    )
    texts = {"train": "x NN\ny VB\nz IN\n", "dev": text}
    directory = tmp_path_factory.mktemp("task")
    settings = {"max_length": max_length, "stride": stride}
    split = open_task(directory, tokenizer, "dev", texts=texts, **settings).splits["dev"]
    kept = []
    for index in range(len(split.lengths)):
        row = split.row(index)
        assert len(row.sequences[0]) == split.lengths[index] <= max_length
        target = np.asarray(row.targets["labels"])
        kept.append(split.reduce(index, one_hot(np.maximum(target, 0), 3)))
    for record, words, names in zip(split.records(kept), sentences, labels, strict=True):
        assert record["tokens"] == words
        assert record["label"] == record["prediction"] == names


@pytest.mark.parametrize(("separator", "between"), [(None, " "), ("\t", "\t")])
def test_predictions_are_written_in_columns(
    tmp_path: Path, tokenizer: Tokenizer, separator: str | None, between: str
) -> None:
    texts = {"train": TRAIN.replace(" ", between), "test": "dogs\n\nthe\nmill\n"}
    family = open_task(tmp_path, tokenizer, "train", "test", texts=texts, separator=separator)
    for role in ("train", "test"):
        records = predict(family, family.splits[role])
        (path,) = family.write_official(role, records, tmp_path / "out")
        blocks = path.read_text(encoding="utf-8").split("\n\n")
        for block, record in zip(blocks, records, strict=True):
            columns = [line.split(between) for line in block.splitlines()]
            assert [column[0] for column in columns] == record["tokens"]
            assert [column[-1] for column in columns] == record["prediction"]
            if role == "train":
                assert [column[1] for column in columns] == record["label"]
            else:
                assert {len(column) for column in columns} == {2}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"test.conll", "train.conll"}


def test_the_dev_set_uses_the_training_labels(tmp_path: Path, tokenizer: Tokenizer) -> None:
    # No training sentence has I-B, but the scheme does.
    texts = {"train": TRAIN, "dev": "old B-B\nmill I-B\n"}
    family = open_task(tmp_path, tokenizer, "train", "dev", texts=texts)
    assert [*family.splits] == ["train", "dev"]
    texts["dev"] = "old O\n\nmill B-AB\n"
    values = {"found": "B-AB", "allowed": ["B-A", "B-B", "I-A", "I-B", "O"]}
    with refuses("label.unknown", place=f"{tmp_path}/dev.txt: line 3", **values) as error:
        open_task(tmp_path, tokenizer, "train", "dev", texts=texts)
    assert "did you mean" in str(error.value)


@pytest.mark.parametrize(
    ("train", "settings", "place", "key", "values"),
    [
        (TRAIN, {"stride": 15}, "task.stride", "tokens.stride", {"found": 15, "most": 14}),
        ("a O\nb O\n", {}, "", "label.too_few", {"found": ["O"]}),
        (
            "a O\nb E-A\n",
            {"scheme": "IOB2"},
            ": line 2",
            "tokens.label_outside_scheme",
            {"found": "E-A", "scheme": "IOB2"},
        ),
        (TRAIN, {"test": None, "roles": ["test"]}, "task.test", "task.no_file", {}),
        (
            TRAIN,
            {"labels": ("NN", "VB"), "scheme": "IOB2"},
            "task.scheme",
            "tokens.scheme",
            {"found": "IOB2", "label": "NN", "allowed": "none"},
        ),
        (
            TRAIN,
            {"labels": ("B-A", "O")},
            ": line 3",
            "label.unknown",
            {"found": "I-A", "allowed": ["B-A", "O"], "hint": '; did you mean "B-A"?'},
        ),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path,
    tokenizer: Tokenizer,
    train: str,
    settings: dict[str, Any],
    place: str,
    key: str,
    values: dict[str, Any],
) -> None:
    settings = dict(settings)
    roles = settings.pop("roles", ["train"])
    place = place if place.startswith("task.") else f"{tmp_path}/train.txt{place}"
    with refuses(key, place=place, **values):
        open_task(tmp_path, tokenizer, *roles, texts={"train": train}, **settings)


NAMES = ["O", "B-A", "I-A"]
TOKENS = [["the", "old", "dogs"], [], ["saw", "mill"]]
TAGS = [[0, 1, 2], [], [1, 0]]


def as_names(tags: list[list[int]]) -> list[list[str]]:
    return [[NAMES[tag] for tag in row] for row in tags]


@pytest.mark.parametrize("column", ["ner_tags", "labels", "my_tags"])
@pytest.mark.parametrize(
    "form", ["names.jsonl", "numbers.jsonl", "names.parquet", "classes.parquet"]
)
def test_lists_of_tokens_and_labels_are_read(
    tmp_path: Path, tokenizer: Tokenizer, form: str, column: str
) -> None:
    kind, _, suffix = form.partition(".")
    tags: list[Any] = as_names(TAGS) if kind == "names" else TAGS
    tag = datasets.ClassLabel(names=NAMES) if kind == "classes" else datasets.Value("string")
    path = tmp_path / form
    rows = {"id": ["1", "2", "3"], "tokens": TOKENS, column: tags}
    if suffix == "jsonl":
        lines = (
            dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)
        )
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        words = datasets.List(datasets.Value("string"))
        features = {"id": datasets.Value("string"), "tokens": words, column: datasets.List(tag)}
        datasets.Dataset.from_dict(rows, features=datasets.Features(features)).to_parquet(path)
    settings: dict[str, Any] = {"label_column": column} if column == "my_tags" else {}
    settings |= {"label_names": NAMES} if kind == "numbers" else {}
    family = open_task(tmp_path, tokenizer, "train", texts={}, train=str(path), **settings)
    assert family.heads.labels == ("B-A", "I-A", "O")
    assert family.best_metric == "f1"
    split = family.splits["train"]
    assert isinstance(split, TokenSplit)
    records = predict(family, split)
    assert [record["tokens"] for record in records] == [TOKENS[0], TOKENS[2]]
    assert [record["label"] for record in records] == as_names([TAGS[0], TAGS[2]])


def test_numbers_without_names_are_labels_with_a_note(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"tokens": ["a", "dog"], "ner_tags": [0, 1]}\n')
    family = open_task(tmp_path, tokenizer, "train", texts={}, train=str(path))
    assert family.heads.labels == ("0", "1")
    assert any("label_names" in note for note in family.notes)


@pytest.mark.parametrize(
    ("row", "key", "column", "values"),
    [
        (
            {"tokens": ["a"], "ner_tags": ["O", "O"]},
            *("row_labels", "ner_tags", {"found": "2 labels", "count": 1}),
        ),
        (
            {"tokens": ["a"], "ner_tags": "O"},
            *("row_labels", "ner_tags", {"found": "no list", "count": 1}),
        ),
        ({"tokens": ["a"], "ner_tags": [-100]}, "row_label", "ner_tags", {"found": -100}),
        ({"tokens": ["a"], "ner_tags": [None]}, "row_label", "ner_tags", {"found": None}),
        ({"tokens": ["a", 1], "ner_tags": ["O", "O"]}, "row", "tokens", {}),
        ({"tokens": ["a"], "pos": ["O"]}, "row_column", None, {"found": ["tokens", "pos"]}),
        ({"sentence": ["a"], "tags": ["O"]}, "row_column", None, {"setting": "token_column"}),
        (
            {"tokens": ["a"], "tags": ["X"], "labels": ["O"]},
            *("label_columns", None, {"found": ["labels", "tags"]}),
        ),
        # `DataFrame.to_csv` writes lists as texts.
        (
            {"tokens": "['a', 'b']", "ner_tags": ["O", "O"]},
            *("list_text", "tokens", {"found": "\"['a', 'b']\""}),
        ),
        (
            {"text": "['a' 'b']", "ner_tags": ["O", "O"]},
            *("list_text", "text", {"found": "\"['a' 'b']\""}),
        ),
    ],
)
def test_a_malformed_row_is_named(
    tmp_path: Path,
    tokenizer: Tokenizer,
    row: dict[str, Any],
    key: str,
    column: str | None,
    values: dict[str, Any],
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json.dumps(row)}\n")
    place = f"{path}: line 1" + (f': column "{column}"' if column else "")
    with refuses(f"tokens.{key}", place=place, **values):
        open_task(tmp_path, tokenizer, "train", texts={}, train=str(path))


def test_labels_of_entities_have_priority_over_parts_of_speech(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    path = tmp_path / "train.jsonl"
    row = {"tokens": ["a", "dog"], "tags": ["D", "N"], "labels": ["x", "y"], "ner": ["O", "B-A"]}
    path.write_text(f"{json.dumps(row)}\n")
    family = open_task(tmp_path, tokenizer, "train", texts={}, train=str(path))
    assert family.heads.labels == ("B-A", "I-A", "O")


def test_a_dataset_in_memory_keeps_the_names_of_its_classes(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    tags = datasets.List(datasets.ClassLabel(names=NAMES))
    features = {"tokens": datasets.List(datasets.Value("string")), "ner_tags": tags}
    rows: Any = datasets.Dataset.from_dict(
        {"tokens": TOKENS, "ner_tags": TAGS}, features=datasets.Features(features)
    )
    task = {"kind": "token_classification"}
    config = {"run_dir": str(tmp_path / "run"), "finetune": {"init_from": "x", "task": task}}
    with_tables(parse_config(config, source="a.yaml"), {"train": rows})
    written = str(tmp_path / "run" / "data" / "train.jsonl")
    family = open_task(tmp_path, tokenizer, "train", texts={}, train=written)
    assert family.heads.labels == ("B-A", "I-A", "O")


def test_the_columns_that_are_read_are_noted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "the X O\ndogs Y B_A\n\nold X I_A\n"
    family = open_task(tmp_path, tokenizer, "train", texts={"train": text})
    assert family.notes[0].startswith(f"{tmp_path}/train.txt: of 3 columns")
    assert family.heads.labels == ("B_A", "I_A", "O")
    assert family.best_metric == "f1"
    with refuses("tokens.column_name", place="task.label_column", found="ner_tags"):
        open_task(tmp_path, tokenizer, "train", texts={"train": text}, label_column="ner_tags")


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_every_word_is_read_in_its_best_window(
    data: st.DataObject,
) -> None:
    room = data.draw(st.integers(1, 12))
    stride = data.draw(st.integers(1, room))
    lengths = np.array(data.draw(st.lists(st.integers(1, room), min_size=1, max_size=40)))
    windows = cut_windows(lengths, room=room, stride=stride)
    assert [word for window in windows for word in range(window.read, window.read_end)] == list(
        range(len(lengths))
    )
    for window in windows:
        assert lengths[window.first : window.end].sum() <= room
        assert window.first <= window.read <= window.read_end <= window.end
    for before, after in itertools.pairwise(windows):
        assert before.first < after.first <= before.end < after.end
        step = lengths[before.first : after.first].sum()
        # Starts are rounded up to whole words, unless that would skip a word.
        assert step >= stride or after.first == before.end
    for word in range(len(lengths)):
        contexts = [
            min(lengths[window.first : word].sum(), lengths[word + 1 : window.end].sum())
            if window.first <= word < window.end
            else -1
            for window in windows
        ]
        read = next(i for i, w in enumerate(windows) if w.read <= word < w.read_end)
        assert contexts[read] == max(contexts)
        assert read == contexts.index(max(contexts))
