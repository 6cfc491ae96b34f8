"""Conditions, starts of texts, and batches, over their whole range."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.corpus.keep import Condition
from bert_jax.corpus.parts import find_parts
from bert_jax.inference.batches import BatchShape, plan_batches
from bert_jax.text import load_wordpiece
from tests.project import refuses

VALUES = st.one_of(st.none(), st.integers(-3, 3).map(float))
COMPARED = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.integers(-2, 2),
).map(lambda parts: "{} {} {}".format(*parts))
CONDITIONS = st.recursive(
    COMPARED | st.sampled_from(["a in [1, 2]", "b not in [0]", "-1 < a <= b"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda parts: "({}) {} ({})".format(*parts)
        )
        | inner.map("not ({})".format)
    ),
    max_leaves=6,
).filter(lambda text: text != "a")


@settings(max_examples=200, deadline=None)
@given(CONDITIONS, st.lists(st.tuples(VALUES, VALUES).filter(lambda row: None not in row)))
def test_a_condition_keeps_the_rows_that_python_would(condition: str, rows: list) -> None:
    table = pa.table(
        {
            "a": pa.array([a for a, _ in rows], pa.float32()),
            "b": pa.array([b for _, b in rows], pa.float32()),
        }
    )
    kept = Condition(condition, columns=["a", "b"]).kept(table).to_pylist()
    expected = [{"a": a, "b": b} for a, b in rows if eval(condition, {}, {"a": a, "b": b})]
    assert kept == expected


def test_conditions_of_other_columns() -> None:
    table = pa.table(
        {
            "label": ["good", None, "bad"],
            "probabilities": [{"good": 0.9}, {"good": 0.2}, {"good": 0.4}],
        }
    )
    for text, count in (
        ('label == "good"', 1),
        ("label is None", 1),
        ("label is not None and probabilities['good'] < 0.5", 1),
        ('label in ["good", "bad"]', 2),
    ):
        assert Condition(text, columns=table.column_names).kept(table).num_rows == count
    for text in (
        "label",
        "label == ",
        "f(label) > 1",
        "label + 1 > 2",
        "label == x[0]",
        "a" * 5000,
    ):
        with refuses("score.keep"):
            Condition(text, columns=table.column_names)
    with refuses("score.keep_column", place="score.keep", meant="label"):
        Condition("labels == 1", columns=table.column_names)
    with refuses("score.keep_types", place="score.keep"):
        Condition("label > 3", columns=table.column_names).kept(table)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> object:
    path = tmp_path_factory.mktemp("v") / "vocab.txt"
    letters = [*"abcσς́é世.,"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    path.write_text("\n".join([*pieces, "ab", "##bc"]) + "\n")
    return load_wordpiece(path, lower_case=True)


@settings(max_examples=300, deadline=None)
@given(
    st.text(
        st.sampled_from([*"abcdΣσÉé世., \n\t\x0b\x1c\x85\u2028\u3000\u200b\u0301"]), max_size=60
    ),
    st.integers(1, 12),
)
def test_the_start_of_a_text_has_the_ids_of_the_whole(wordpiece, text: str, most: int) -> None:
    whole = wordpiece.encode(text)
    (start,) = wordpiece.encode_starts([text], most)
    assert start.tolist() == whole[: len(start)]
    assert len(start) >= min(most, len(whole))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 64), max_size=80),
    st.lists(st.sampled_from([8, 16, 32, 48]), unique=True),
    st.integers(1, 200),
)
def test_batches_hold_every_row_once(lengths: list[int], buckets: list[int], tokens: int) -> None:
    shapes = [BatchShape(max(tokens // size, 1), size) for size in sorted({*buckets, 64})]
    batches = plan_batches(np.array(lengths, np.int64), shapes)
    rows = [row for batch in batches for row in batch.rows.tolist()]
    assert sorted(rows) == [*range(len(lengths))]
    for at, (chosen, shape) in enumerate(batches):
        longest = max(lengths[row] for row in chosen)
        assert shape == next(each for each in shapes if each.length >= longest)
        assert len(chosen) == shape.rows or at == len(batches) - 1


def test_names_of_parts(tmp_path) -> None:
    for name in ("a/x.jsonl", "a/y.txt.gz", "b/x.txt", "b/.hidden.txt", "b/_parts/z.txt", "b/n.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n" * 600)
    found = find_parts([str(tmp_path)], part_bytes=1 << 20)
    assert [part.stem for part in found] == ["a/x", "a/y", "b/x"]
    found = find_parts([f"{tmp_path}/a/*", f"{tmp_path}/b/x.txt"], part_bytes=1024)
    assert [part.stem for part in found] == [
        *("a/x-00000-of-00003", "a/x-00001-of-00003", "a/x-00002-of-00003", "a/y"),
        *("b/x-00000-of-00003", "b/x-00001-of-00003", "b/x-00002-of-00003"),
    ]
    cut = [part.file for part in found if part.stem.startswith("b")]
    assert [(part.start, part.stop) for part in cut] == [(0, 1030), (1030, 2060), (2060, 3000)]
    (tmp_path / "a" / "x.txt").write_text("")
    with refuses("score.same_output", place="score.input", name="a/x"):
        find_parts([str(tmp_path)], part_bytes=1 << 20)
    with refuses("score.format", place="score.input"):
        find_parts([f"{tmp_path}/b/n.md"], part_bytes=1 << 20)
