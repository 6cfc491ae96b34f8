"""Entities in texts: as in Hugging Face's pipeline, and as in the training data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console
from transformers import BertForTokenClassification, pipeline

import bert_jax
from tests.interop.hf_checkpoints import hf_config, hf_model
from tests.project import ok, refuses
from tests.tasks.runs import tiny_run

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,-()'@!", "東", "京", "##s", "##ing"]
WORDS = [f"w{number}" for number in range(40)]
TEXTS = [
    "W1 w2, w3s (w4-w5ing) w6.",
    "  w7's   w8!w9 \n w10\tw11.w12 ",
    "w13 unknown w14 東京 w15 Éw16",
    "@w17 w18... 'w19' w20 w21 w22 w23 w24",
    "w25",
]
_RNG = np.random.default_rng(4)
TEXTS += [
    "".join(
        _RNG.choice([*WORDS, "W1", "w2s", "x"]) + _RNG.choice([" ", " ", ", ", "-", "."])
        for _ in range(12)
    )
    for _ in range(30)
]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = hf_config(
        vocab_size=len(PIECES) + len(WORDS),
        id2label=dict(enumerate(LABELS)),
        label2id={name: number for number, name in enumerate(LABELS)},
    )
    model = hf_model(BertForTokenClassification, config)
    with torch.no_grad():  # with small weights, all words would have one label
        model.bert.embeddings.word_embeddings.weight.mul_(30)
        model.classifier.weight.mul_(30)
    directory = tmp_path_factory.mktemp("tagger")
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*PIECES, *WORDS]))
    tokenizer = transformers.BertTokenizer(str(directory / "vocab.txt"), do_lower_case=True)
    tokenizer.save_pretrained(directory)
    return directory


def test_entities_equal_hugging_faces_pipeline(tagger: Path) -> None:
    theirs = pipeline("token-classification", str(tagger), aggregation_strategy="first")
    model = bert_jax.load(tagger)
    types = set()
    for text, record in zip(TEXTS, model.predict(TEXTS), strict=True):
        expected = theirs(text)
        found = record["entities"]
        assert [(e["type"], e["start"], e["end"]) for e in found] == [
            (e["entity_group"], e["start"], e["end"]) for e in expected
        ], text
        scores = [float(e["score"]) for e in expected]
        np.testing.assert_allclose([e["probability"] for e in found], scores, atol=1e-3)
        assert record["text"] == text
        for entity in found:
            assert entity["text"] == text[entity["start"] : entity["end"]]
            first, end = entity["tokens"]
            assert record["offsets"][first][0] == entity["start"]
            assert record["offsets"][end - 1][1] == entity["end"]
        spans = record["offsets"]
        assert [text[start:end] for start, end in spans] == record["tokens"]
        assert len(record["probabilities"]) == len(record["prediction"]) == len(spans)
        assert all(0.2 < chance <= 1 for chance in record["probabilities"])
        types |= {e["type"] for e in found}
        several = [e for e in found if e["tokens"][1] - e["tokens"][0] > 1]
        types |= {"several"} if several else set()
    assert types == {"PER", "LOC", "several"}


def test_lists_of_tokens_stay_as_they_are(tagger: Path) -> None:
    (record,) = bert_jax.load(tagger).predict([["W1", "w2.w3", "w4"]])
    assert (record["tokens"], record["text"]) == (["W1", "w2.w3", "w4"], "W1 w2.w3 w4")
    assert record["offsets"] == [(0, 2), (3, 8), (9, 11)]


def tuned(directory: Path, rows: list[dict[str, Any]], **task: Any) -> str:
    """Fine-tunes for one epoch on rows in memory, and returns the run directory."""
    config = {
        "run_dir": str(directory / "tuned"),
        "finetune": {
            "init_from": str(tiny_run(directory)),
            "task": {"kind": "token_classification", **task},
            "max_length": 16,
            "batch_size": 8,
            "epochs": 1,
        },
    }
    data = {"train": rows, "dev": rows[:8]}
    bert_jax.finetune(config, data=data, console=Console(quiet=True))
    return str(directory / "tuned")


@pytest.mark.parametrize("separate", [True, False])
def test_texts_are_divided_as_the_training_data(separate: bool, tmp_path: Path) -> None:
    tokens = ["good1", "word1", "."] if separate else ["good1", "word1."]
    rows = [{"tokens": tokens, "ner_tags": ["B-X", "O", "O"][: len(tokens)]}] * 16
    run = tuned(tmp_path, rows)
    model = bert_jax.load(run)
    records = model.predict(["good1, word2."])
    assert records[0]["tokens"] == (
        ["good1", ",", "word2", "."] if separate else ["good1,", "word2."]
    )
    table = {"body": ["good1 word1"], "n": [1]}
    assert model.predict(table, column="body")[0]["tokens"] == ["good1", "word1"]
    with refuses("rows.column_unknown", column="bodi", hint='; did you mean "body"?'):
        model.predict(table, column="bodi")
    (tmp_path / "in.jsonl").write_text('{"text": "good1, word2."}\n')
    ok("predict", run, tmp_path / "out.jsonl", "--input", tmp_path / "in.jsonl")
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    found, expected = json.loads(line), json.loads(json.dumps(records[0]))
    assert found.pop("probabilities") == pytest.approx(expected.pop("probabilities"), abs=1e-5)
    for each in (*found["entities"], *expected["entities"]):
        assert each.pop("probability") > 0
    assert found == expected


def test_numbers_as_labels_of_tokens_come_back_as_numbers(tmp_path: Path) -> None:
    rows = [{"tokens": ["good1", "word1"], "ner_tags": [1, 0]}] * 16
    model = bert_jax.load(tuned(tmp_path, rows))
    (record,) = model.predict(["good1 word2"])
    assert [type(label) for label in record["prediction"]] == [int, int]
    assert "entities" not in record  # numbers have no spans
