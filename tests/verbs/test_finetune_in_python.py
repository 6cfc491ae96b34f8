"""Fine-tuning from Python: settings as a dict, overrides, labels, history, and loading."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import bert_jax
from bert_jax.interop import open_model
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks.family import DataRequest
from bert_jax.train.metrics_writer import read_metrics
from tests.project import ok, write_config
from tests.tasks.runs import tiny_config, tiny_run

QUIET = Console(quiet=True)


@pytest.mark.parametrize(
    ("labels", "suffix", "expected"),
    [
        ([1, 0], "", True),
        ([1.0, -2.0], "", True),  # pandas writes whole numbers as floats if some are missing
        ([[1, 0], [0]], "", True),
        (["1", "0"], "", False),
        ([True, False], "", False),
        ([0.5, 1.0], "", False),
        (["1", "0"], ".csv", True),  # a .csv has no types
        (["01", "02"], ".csv", False),
        (["good", "bad"], ".csv", False),
    ],
)
def test_the_labels_of_a_table_are_numbers_or_texts(
    labels: list[Any], suffix: str, expected: bool, tmp_path: Path
) -> None:
    rows = [{"text": f"word{n}", "label": labels[n % 2]} for n in range(8)]
    path = tmp_path / f"train{suffix or '.jsonl'}"
    lines = [f"{row['text']},{row['label']}" if suffix else json.dumps(row) for row in rows]
    path.write_text("\n".join([*(["text,label"] if suffix else []), *lines]) + "\n")
    tokenizer = open_run(tiny_run(tmp_path)).tokenizer
    section = bert_jax.TableSection(train=str(path), text="text", label="label")
    family = section.open(DataRequest(tokenizer, 16, seed=0, roles=("train",)))
    assert family.heads.integer_labels is expected


def test_numbers_as_labels_come_back_as_numbers(tmp_path: Path) -> None:
    rows = [{"body": f"{('bad', 'good')[n % 2]}{n % 4} word{n}", "mark": n % 2} for n in range(16)]
    task = {"kind": "table", "text": "body", "label": "mark"}
    finetune = {"init_from": str(tiny_run(tmp_path)), "task": task, "max_length": 16, "epochs": 1}
    config = {"run_dir": str(tmp_path / "tuned"), "finetune": finetune}
    bert_jax.finetune(config, data={"train": rows, "dev": rows}, console=QUIET)
    found = bert_jax.load(tmp_path / "tuned").predict(rows)
    assert [record["label"] for record in found] == [0, 1] * 8
    for record in found:
        assert [*record["probabilities"]] == [0, 1]
        assert record["prediction"] == max((0, 1), key=record["probabilities"].__getitem__)
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "in.jsonl").write_text(lines)
    said = ok(
        "predict", tmp_path / "tuned", tmp_path / "out.jsonl", "--input", tmp_path / "in.jsonl"
    )
    right = sum(record["label"] == record["prediction"] for record in found)
    assert f"accuracy {right / 16:.1%}" in said
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["prediction"], row["label"]) for row in written] == [
        (record["prediction"], record["label"]) for record in found
    ]


def test_a_dict_and_overrides_train_like_a_file(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, epochs=3, log_every=5)
    file = write_config(tmp_path / "run.yaml", config)
    epochs: dict[str, Any] = {"finetune.epochs": 1}
    outcomes = [
        bert_jax.finetune(
            each,
            console=QUIET,
            run_dir=str(tmp_path / f"run{at}"),
            **epochs,
        )
        for at, each in enumerate([config, file])
    ]
    first = outcomes[0]
    assert first.step == 10  # 160 rows in batches of 16
    assert config["finetune"]["epochs"] == 3
    for at, outcome in enumerate(outcomes):
        assert Path(outcome.path) == tmp_path / f"run{at}"
        assert outcome.scores == first.scores
        assert outcome.history == read_metrics(outcome.path)
    losses = [line["loss"] for line in first.history if line["kind"] == "train"]
    assert losses
    assert losses == [line["loss"] for line in outcomes[1].history if line["kind"] == "train"]


def test_only_a_slow_load_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_run(tmp_path)
    bert_jax.load(run)
    assert capsys.readouterr() == ("", "")
    read = open_model.open_run

    def slow(directory: Any) -> Any:
        time.sleep(2.5)
        return read(directory)

    monkeypatch.setattr(open_model, "open_run", slow)
    bert_jax.load(run)
    assert capsys.readouterr() == ("", f"loading {run} …\n")


def test_columns_name_the_texts_of_a_table(tmp_path: Path) -> None:
    model = bert_jax.load(tiny_run(tmp_path))
    texts = ["word1 word2", "good1"]
    expected = model.encode(texts)
    table = {"body": texts, "text": ["other", "other"], "pair": ["other", "other"]}
    assert (model.encode(table, column="body") == expected).all()
    found = model.features(table, column="body", level="word")
    assert [each.units for each in found] == [["word1", "word2"], ["good1"]]
