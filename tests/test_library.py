"""Models from `bert_jax.load` equal the original PyTorch models."""

import json
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from transformers import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)

import bert_jax
from tests.feature_extraction.runs import IDS, PIECES, pieces_of
from tests.interop.hf_checkpoints import hf_config, hf_model
from tests.project import refuses

NAMES = ("bad", "good", "other")


def save(model: Any, directory: Path) -> Path:
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    return directory


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BertForPreTraining]:
    config = hf_config(vocab_size=len(PIECES))
    model = hf_model(BertForPreTraining, config)
    return save(model, tmp_path_factory.mktemp("pretrained") / "hf"), model


@pytest.fixture(scope="module")
def classifier(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[bert_jax.LoadedModel, BertForSequenceClassification]:
    labels = dict(enumerate(NAMES))
    config = hf_config(
        vocab_size=len(PIECES), id2label=labels, label2id={n: i for i, n in labels.items()}
    )
    model = hf_model(BertForSequenceClassification, config)
    directory = save(model, tmp_path_factory.mktemp("classifier") / "hf")
    return bert_jax.load(directory), model


def ids_of(text: str, pair: str | None = None) -> dict[str, torch.Tensor]:
    first = ["[CLS]", *pieces_of(text), "[SEP]"]
    second = [] if pair is None else [*pieces_of(pair), "[SEP]"]
    return {
        "input_ids": torch.tensor([[IDS[piece] for piece in [*first, *second]]]),
        "token_type_ids": torch.tensor([[0] * len(first) + [1] * len(second)]),
    }


def test_a_hugging_face_directory_equals_its_import(
    pretrained: tuple[Path, BertForPreTraining], tmp_path: Path
) -> None:
    directory, reference = pretrained
    model = bert_jax.load(directory)
    run = bert_jax.import_checkpoint(str(directory), str(tmp_path / "run"))
    text = "w1 [MASK] w3x1 [MASK] w5 [MASK]"
    one = model.fill_mask(text, top_k=3)
    assert one.text == text
    assert [len(candidates) for candidates in one.masks] == [3, 3, 3]
    several = model.fill_mask([text, "[MASK] w2"], top_k=3)
    assert [piece for piece, _ in several[0].masks[1]] == [piece for piece, _ in one.masks[1]]
    assert bert_jax.fill_mask(str(run), text, top_k=3)[0].masks[2][0].piece == one.masks[2][0].piece
    with torch.no_grad():
        logits = reference(**ids_of(text)).prediction_logits[0, 2]
    logits[:5] = -torch.inf
    assert one.masks[0][0].probability == pytest.approx(logits.softmax(0).max().item(), rel=1e-3)
    vectors = model.encode(["w1 w2", ("w3", "w4x2")], layers="last", pool="cls")
    with torch.no_grad():
        states = [
            reference.bert(**ids_of(*texts)).last_hidden_state[0, 0]
            for texts in (("w1 w2",), ("w3", "w4x2"))
        ]
    np.testing.assert_allclose(vectors, np.stack([state.numpy() for state in states]), atol=1e-4)
    np.testing.assert_allclose(
        model.encode("w1 w2", layers="last", pool="cls"), vectors[0], atol=1e-5
    )
    assert model.features(["w1 w3x1"], level="word")[0].units == ["w1", "w3x1"]
    assert model.tokenizer.vocab_size == len(PIECES)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(model.params))
    with refuses("predict.no_task_head"):
        model.predict(["w1"])
    with refuses("batch_size.range", found=0):
        model.encode("w1", batch_size=0)


def test_predictions_for_all_row_forms_equal_hugging_faces(
    classifier: tuple[bert_jax.LoadedModel, BertForSequenceClassification],
) -> None:
    import datasets

    model, reference = classifier
    pairs = [("w1 w2", "w3"), ("w7x1", "w8 w9"), ("w4", "w4")]
    with torch.no_grad():
        expected = [reference(**ids_of(*pair)).logits[0].softmax(0).numpy() for pair in pairs]
    dicts = [{"text": text, "pair": pair} for text, pair in pairs]
    forms: list[Any] = [
        pairs,
        np.asarray(pairs),
        dicts,
        {"text": [text for text, _ in pairs], "pair": np.asarray([pair for _, pair in pairs])},
        pd.DataFrame(dicts),
        datasets.Dataset.from_list(dicts),
        pyarrow.Table.from_pylist(dicts),
        iter(pairs),
    ]
    for rows in forms:
        found = model.predict(rows)
        chances = [list(record["probabilities"].values()) for record in found]
        np.testing.assert_allclose(chances, expected, atol=1e-4)
        assert [record["prediction"] for record in found] == [
            NAMES[row.argmax()] for row in expected
        ]
        assert [record["id"] for record in found] == [0, 1, 2]
    single = model.predict(["w1 w2"])
    with torch.no_grad():
        alone = reference(**ids_of("w1 w2")).logits[0].softmax(0).numpy()
    np.testing.assert_allclose(list(single[0]["probabilities"].values()), alone, atol=1e-4)
    assert model.predict([]) == []


def test_calls_of_the_same_shape_compile_once(
    classifier: tuple[bert_jax.LoadedModel, BertForSequenceClassification],
) -> None:
    model, _ = classifier
    model.predict(["w1 w2", "w3", "w4"])
    model.encode(["w1 w2", "w3", "w4"])
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    model.predict(["w5", "w6 w1", "w8"])
    model.encode([f"w{number}" for number in range(4)])
    assert compiled == []


@pytest.mark.parametrize(
    ("rows", "key", "place", "found"),
    [
        ([1.5], "rows.row_kind", "rows: row 1", "float"),
        ([("a", "b"), ("a", "b", "c")], "rows.too_many_values", "rows: row 2", 3),
        ([{"texts": "a", "id": 1}], "rows.columns", "rows: row 1", ["texts", "id"]),
        ([{"text": None}], "table.not_text", 'rows: row 1: column "text"', "null"),
        ({"text": ["a", "b"], "pair": ["c"]}, "rows.column_lengths", "rows", ["text 2", "pair 1"]),
        (3, "rows.kind", "rows", "int"),
        (pd.DataFrame([["a", "b"]], columns=["text"] * 2), "rows.column_twice", "rows", "text"),
        (pyarrow.table([["a"], ["b"]], ["text"] * 2), "rows.column_twice", "rows", "text"),
    ],
)
def test_unreadable_rows_are_named(
    classifier: tuple[bert_jax.LoadedModel, BertForSequenceClassification],
    rows: Any,
    key: str,
    place: str,
    found: object,
) -> None:
    with refuses(key, place=place, found=found):
        classifier[0].predict(rows)


def test_a_model_with_few_positions_answers_questions(tmp_path: Path) -> None:
    reference = hf_model(BertForQuestionAnswering, hf_config(vocab_size=len(PIECES)), seed=3)
    directory = save(reference, tmp_path / "hf")
    model = bert_jax.load(directory)
    assert model.architecture.max_position_embeddings == 40
    context = "w5 w6 w7 w8 w9 w1 w2"
    for words, settings, asked in (
        (6, {}, 6),
        (50, {}, 18),  # (40 positions - 3) / 2
        (6, {"max_query_length": 2}, 2),
    ):
        question = " ".join(["w3"] * words)
        inputs = ids_of(" ".join(["w3"] * asked), context)
        with torch.no_grad():
            output = reference(**inputs)
        first = 2 + asked  # first piece of the context
        scores = output.start_logits[0, first:-1, None] + output.end_logits[0, None, first:-1]
        start, end = divmod(int(scores.where(_spans(7), -torch.inf).argmax()), 7)
        [record] = model.predict([(question, context)], task={"version": "1.1", **settings})
        assert record["prediction"] == " ".join(context.split()[start : end + 1]), words
    [long] = model.predict([("w3 w4", " ".join(["w1"] * 200))])
    assert long["prediction"].startswith("w1")
    run = bert_jax.import_checkpoint(str(directory), str(tmp_path / "run"))
    [again] = bert_jax.load(run).predict([(question, context)], task={"max_query_length": 2})
    assert again["prediction"] == record["prediction"]
    with refuses("setting.unknown", setting="task.max_query_lenght"):
        model.predict([("w1", "w2")], task={"max_query_lenght": 2})


def _spans(pieces: int) -> torch.Tensor:
    """Returns whether first and last pieces form a valid span, bool [pieces, pieces]."""
    return torch.ones(pieces, pieces, dtype=torch.bool).triu()


def test_an_invalid_choice_is_named(
    classifier: tuple[bert_jax.LoadedModel, BertForSequenceClassification],
) -> None:
    model = classifier[0]
    allowed = ["mean", "cls", "last"]
    with refuses("argument.value", place="pool", found="'max'", allowed=allowed):
        model.encode("w1", pool=cast(Any, "max"))
    with refuses("argument.value", place="level", hint='; did you mean "word"?'):
        model.features("w1", level=cast(Any, "wrod"))
    with refuses("rows.no_text", place="texts: row 1", found=["name"]):
        model.encode({"name": ["w1"]})
