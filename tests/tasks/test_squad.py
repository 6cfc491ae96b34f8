import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bert_jax.tasks.family import DataRequest, Family, Record
from bert_jax.tasks.squad.family import SquadSection, SquadSplit
from bert_jax.tasks.squad.file import Answer, find_answer
from tests.project import refuses
from tests.tasks import reference_squad
from tests.tasks.squad_data import letters_tokenizer, open_one, question, squad, write

TOWER = "The  tower of Paris (1889) was built in Élan, un\u00adknown 中国北京."
LONG = " ".join(f"in 18{year:02d} the tower of paris was built" for year in range(100))


def _split(family: Family, role: str = "dev") -> SquadSplit:
    split = family.splits[role]
    assert isinstance(split, SquadSplit)
    return split


def _answered(
    split: SquadSplit, wanted: dict[str, str], *, null: dict[str, float] | None = None
) -> list[Record]:
    """Returns the records for logits that predict the texts in `wanted`."""
    tokenizer = letters_tokenizer()
    kept = []
    rng = np.random.default_rng(0)
    for row in range(len(split.lengths)):
        logits = rng.uniform(-1, 0, (split.lengths[row], 2)).astype(np.float32)
        id = split.question(row).id
        ids, at = split.row(row).sequences[0], split.row(row).seconds[0]
        pieces = tokenizer.encode(wanted.get(id, ""))
        places = [n for n in range(at, len(ids)) if list(ids[n : n + len(pieces)]) == pieces]
        if pieces and places:
            logits[places[0], 0] = logits[places[0] + len(pieces) - 1, 1] = 5
        logits[0] = (null or {}).get(id, 0) / 2
        kept.append(split.reduce(row, logits))
    return split.records(kept)


def _tower(tmp_path: Path, **settings: Any) -> Family:
    start = TOWER.index
    questions = [
        question("year", "when", ("1889", start("1889")), ("(1889)", start("(1889)"))),
        question("city", "who", ("tower of Paris", start("tower"))),
        question("end", "in", ("北京", start("北京"))),
    ]
    return open_one(write(tmp_path / "dev.json", squad((TOWER, questions))), **settings)


def test_answers_are_verbatim_from_the_context(tmp_path: Path) -> None:
    family = _tower(tmp_path)
    wanted = {"year": "1889", "city": "the tower", "end": "北京"}
    records = _answered(_split(family), wanted)
    assert [record["id"] for record in records] == ["year", "city", "end"]
    assert [record["prediction"] for record in records] == ["1889", "The  tower", "北京"]
    for record in records:
        start = record["start"]
        found = record["context"][start : start + len(record["prediction"])]
        assert found == record["prediction"] == record["nbest"][0]["text"]
        assert sum(entry["probability"] for entry in record["nbest"]) == pytest.approx(1)
        assert record["label"] == record["answers"]
        assert record["score"] == 10.0
        assert "null_score_difference" not in record
    assert records[0]["answers"][1] == {"text": "(1889)", "start": TOWER.index("(1889)")}
    assert records[0]["title"] == "Towers"
    figures = family.score(records)
    assert figures["exact_match"] == pytest.approx(200 / 3)
    # "the tower" for "tower of Paris": precision 1/1, recall 1/3, F1 1/2.
    assert figures["f1"] == pytest.approx(250 / 3)


def test_a_row_is_question_then_window(tmp_path: Path) -> None:
    split = _split(_tower(tmp_path), "dev")
    tokenizer = letters_tokenizer()
    special = tokenizer.special
    when, context = tokenizer.encode("when"), tokenizer.encode(TOWER)
    assert split.row(0).sequences == ([special.cls, *when, special.sep, *context, special.sep],)
    assert split.row(0).seconds == (3,)
    assert split.row(0).targets == {}
    assert (split.examples, len(split.lengths), split.lengths.dtype) == (3, 3, np.int32)


@settings(deadline=None, max_examples=40)
@given(
    max_length=st.integers(24, 60),
    stride=st.integers(1, 50),
    at=st.integers(0, 99),
    n=st.integers(1, 7),
)
def test_every_window_with_the_answer_has_it_as_target(
    tmp_path_factory: pytest.TempPathFactory, max_length: int, stride: int, at: int, n: int
) -> None:
    words = LONG.split()
    start = len(" ".join(words[:at])) + bool(at)
    text = " ".join(words[at : at + n])
    content = squad((LONG, [question("a", "who built in paris?", (text, start))]))
    path = write(tmp_path_factory.mktemp("squad") / "x.json", content)
    split = _split(
        open_one(path, role="train", max_length=max_length, stride=stride, max_query_length=8),
        "train",
    )
    tokenizer = letters_tokenizer()
    context, query = tokenizer.encode(LONG), tokenizer.encode("who built in paris?")
    spans = reference_squad.windows(len(context), max_length - 3 - len(query), stride)
    first = len(tokenizer.encode(LONG[:start]))
    last = first + len(tokenizer.encode(text)) - 1
    assert len(split.lengths) == len(spans)
    special = tokenizer.special
    for row, (begin, end) in enumerate(spans):
        ids = [special.cls, *query, special.sep, *context[begin:end], special.sep]
        encoded = split.row(row)
        assert encoded.sequences == (ids,)
        assert split.lengths[row] == len(ids) <= max_length
        shift = len(query) + 2 - begin
        inside = begin <= first and last < end
        expected = (first + shift, last + shift) if inside else (0, 0)
        assert (encoded.targets["start"], encoded.targets["end"]) == expected


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("cat", 4, "cat"),
        ("cat", 3, "cat"),  # off by one, but within the same words
        ("cat", 5, "cat"),
        ("cat saw", 4, "cat\n saw"),  # white space is ignored
        (" cat ", 3, "cat"),
        ("cat", 0, None),  # wrong offset: other occurrences are ignored
        ("dog", 4, None),
        ("cat", -4, None),
        ("cat", 400, None),
        ("", 4, None),
        ("  ", 0, None),
    ],
)
def test_an_answer_is_found_at_its_offset(text: str, start: int, expected: str | None) -> None:
    context = "the cat\n saw , and the dog"
    found = find_answer(context, Answer(text, start))
    assert (found and context[slice(*found)]) == expected


def test_training_skips_and_counts_misplaced_answers(tmp_path: Path) -> None:
    good, bad = ("paris", 13), ("rome", 13)
    context = "the tower of paris"
    asked = [question("a", "in", good), question("b", "in", bad), question("c", "in", bad, good)]
    path = write(tmp_path / "x.json", squad((context, asked)))
    family = open_one(path, role="train")
    split = _split(family, "train")
    assert split.examples == 2
    # Both rows have the target of the first answer that is in the context.
    assert split.row(1).targets == split.row(0).targets
    (note,) = family.notes
    assert note.startswith(f"{path}: 1 of 3 answers ")
    family = open_one(path)  # dev keeps the question
    assert (_split(family).examples, list(family.notes)) == (3, [])
    content = squad((context, [question("b", "in", bad)]))
    path = write(tmp_path / "y.json", content)
    with refuses("squad.answers_outside", place=path, questions=1):
        open_one(path, role="train")


def test_empty_questions_and_contexts_are_predicted(tmp_path: Path) -> None:
    content = squad(
        ("the tower", [question("a", "", ("tower", 4))]),
        ("", [question("b", "who", impossible=True), question("c", "", impossible=True)]),
    )
    family = open_one(write(tmp_path / "x.json", content))
    split = _split(family)
    assert split.lengths.tolist() == [5, 4, 3]
    records = _answered(split, {"a": "tower"}, null={"b": 3, "c": -3})
    assert [record["prediction"] for record in records] == ["tower", "", ""]
    assert family.score(records)["f1"] == 100.0
    train = _split(open_one(write(tmp_path / "x.json", content), role="train"), "train")
    assert [train.row(n).targets for n in (1, 2)] == [{"start": 0, "end": 0}] * 2


WANTED = {"has1": "1889", "has2": "of paris", "no1": "tower", "no2": "built"}
NULL = {"has1": 8.0, "has2": 12.5, "no1": 13.0, "no2": 12.0}  # best answers score 10


def test_the_threshold_is_tuned_on_dev_like_the_official_one(tmp_path: Path) -> None:
    questions = [
        question("has1", "when", ("1889", 32), impossible=False),
        question("has2", "in", ("paris", 13), impossible=False),
        question("no1", "who", impossible=True),
        question("no2", "un", impossible=True),
    ]
    content = squad(("the tower of paris was built in 1889", questions), version="v2.0")
    path = write(tmp_path / "dev.json", content)
    family = open_one(path)
    records = _answered(_split(family), WANTED, null=NULL)
    differences = {record["id"]: record["null_score_difference"] for record in records}
    assert differences == {"has1": -2.0, "has2": 2.5, "no1": 3.0, "no2": 2.0}
    figures = family.score(records)
    assert figures["null_threshold"] == -2.0
    assert [record["prediction"] for record in records] == ["1889", "", "", ""]
    assert figures["f1"] == figures["best_f1"] == 75.0
    files = family.write_official("dev", records, tmp_path / "out")
    names = ["predictions.json", "nbest_predictions.json", "null_odds.json"]
    assert list(files) == [tmp_path / "out" / name for name in names]
    predictions, nbest, odds = (json.loads(file.read_text()) for file in files)
    assert list(predictions) == list(nbest) == list(odds) == list(WANTED)
    assert nbest["no1"][0] == records[2]["nbest"][0]
    assert set(nbest["no1"][0]) == {"text", "probability", "start_logit", "end_logit"}
    expected = reference_squad.evaluate_2_0(content, predictions)
    assert {key: figures[key] for key in expected} == expected
    best = reference_squad.best_thresholds(content, predictions, odds)
    assert best["best_f1"] == figures["best_f1"]
    assert best["best_f1_thresh"] == figures["null_threshold"]
    # The request's tuned threshold prevents tuning. A configured threshold overrides it.
    changes: list[dict[str, Any]] = [
        {"tuned": {"null_threshold": 2.7}},
        {"tuned": figures, "null_threshold": 2.7},
    ]
    for change in changes:
        records = _answered(_split(open_one(path, **change)), WANTED, null=NULL)
        assert [record["prediction"] for record in records] == ["1889", "of paris", "", "built"]


def test_an_unlabelled_file_is_not_scored(tmp_path: Path) -> None:
    content = squad(("the tower of paris", [question("a", "in")]))
    del content["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    section = SquadSection()
    path = Path(write(tmp_path / "mine.json", content))
    opening = DataRequest(letters_tokenizer(), 96, 0, roles=("input",), input=path)
    family = section.open(opening)
    records = _answered(_split(family, "input"), {"a": "paris"})
    assert (records[0]["prediction"], records[0]["label"]) == ("paris", None)
    tuned = opening._replace(tuned={"null_threshold": 99.0})  # tuned, so the model has version 2.0
    records = _answered(_split(section.open(tuned), "input"), {}, null={"a": 300.0})
    assert records[0]["prediction"] == ""
