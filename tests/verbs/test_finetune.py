"""`finetune`, `evaluate` and `predict` on a table, as a user runs them."""

import csv
import itertools
import json
import os
import re
import shutil
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

import bert_jax
from bert_jax import narration
from bert_jax.config import load_config
from bert_jax.errors import Diverged, UserError
from bert_jax.inference.bucketed import BucketedInference
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.stop_signal import INTERRUPTED
from bert_jax.runs.open_checkpoints import LoadedParams, load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks import predictor
from bert_jax.tasks.data_of_run import open_data
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.sequence import SequenceSplit
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.verbs.finetune import finetune_settings
from bert_jax.workflows.finetuning_setup import prepare
from tests.project import invoke, ok, refused, refuses, says, write_config
from tests.tasks.runs import tiny_config, write_table

pytestmark = pytest.mark.slow


def config_file(directory: Path, **changes: Any) -> Path:
    return write_config(directory / "config.yaml", tiny_config(directory, **changes))


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def evaluation_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "evaluation.json").read_text())


def params_of(run_dir: Path) -> dict[str, np.ndarray]:
    found = load_params(open_run(run_dir), checkpoint="last").params
    return {jax.tree_util.keystr(k): np.asarray(v) for k, v in jax.tree.leaves_with_path(found)}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a configuration, its tables and the fine-tuned run."""
    root = tmp_path_factory.mktemp("tuned")
    # Dropout tests that a stopped run restores its random key.
    changes = {"epochs": 3, "optimizer": {"learning_rate": 2e-3}}
    changes |= {"dropout": 0.1, "accumulation": 2}
    (root / "said.txt").write_text(ok("finetune", config_file(root, **changes)), encoding="utf-8")
    return root


def test_a_run_learns_and_writes_all_documented_files(tuned: Path) -> None:
    run_dir = tuned / "tuned"
    evaluation = evaluation_of(run_dir)
    assert evaluation["scores"]["accuracy"] > 0.8
    assert (evaluation["constant_score"], evaluation["failure"]) == (0.5, None)
    assert "WARNING" not in (tuned / "said.txt").read_text(encoding="utf-8")
    records = records_of(run_dir / "predictions" / "dev.jsonl")
    right = [record["label"] == record["prediction"] for record in records]
    assert np.mean(right) == pytest.approx(evaluation["scores"]["accuracy"])
    report = (run_dir / "report.html").read_text()
    assert "<html" in report
    says(refused("report", run_dir), key="report.fine_tuned", place=run_dir)
    assert (run_dir / "report.html").read_text() == report
    assert [line["step"] for line in read_metrics(run_dir, kind="validation")] == [10, 20, 30]
    assert len(read_metrics(run_dir, kind="train")) == 10  # although `log_every` is 20
    assert open_run(run_dir).heads.labels == ("bad", "good")


def test_a_batch_larger_than_the_table_is_said(tmp_path: Path) -> None:
    said = ok("finetune", config_file(tmp_path, batch_size=200, epochs=1))
    assert "finetune.batch_size: 200 is more than the 160 training rows" in said


def test_few_dev_rows_share_one_program(tuned: Path) -> None:
    config = yaml.safe_load((tuned / "config.yaml").read_text())["finetune"]
    lines = Path(config["task"]["dev"]).read_text(encoding="utf-8").splitlines()[1:]
    assert {len(line.split()) for line in lines} == {4, 18}
    # The run evaluates four times: three times in training, and the best checkpoint at the end.
    said = (tuned / "said.txt").read_text(encoding="utf-8")
    begun = re.compile(r"compiling the model for (\d+) × .* …$", re.MULTILINE)
    assert begun.findall(said) == ["8"], said
    assert begun.findall(ok("evaluate", tuned / "tuned")) == ["8"]


def test_repeating_the_command_changes_no_file(tuned: Path) -> None:
    before = (tuned / "tuned" / "evaluation.json").read_bytes()
    assert "resuming at step 30 of 30" in ok("finetune", tuned / "config.yaml")
    assert "resuming at step 30 of 30" in ok("finetune", tuned / "tuned" / "config.yaml")
    assert (tuned / "tuned" / "evaluation.json").read_bytes() == before
    result = refused("finetune", tuned / "config.yaml", "finetune.optimizer.learning_rate=1e-4")
    assert result.key == "run.other_setting"
    says(result, place="finetune.optimizer.learning_rate")
    says(result, found=0.0001, expected=0.002)


def predict_dev(run_dir: Path, loaded: LoadedParams, params: Any, batch_size: int) -> list[str]:
    run = open_run(run_dir)
    predictor = Predictor(
        loaded.model,
        loaded.mesh,
        batch_size=batch_size,
        max_length=32,
        pad_id=run.tokenizer.special.pad,
        architecture=run.architecture,
    )
    split = open_data(run, roles=("dev",), step=loaded.step).splits["dev"]
    return [record["prediction"] for record in predictor(params, split)]


def test_scores_do_not_depend_on_batch_size_or_devices(tuned: Path) -> None:
    run_dir = tuned / "tuned"
    expected = evaluation_of(run_dir)["scores"]
    ok("evaluate", run_dir, "--batch-size", 32)
    assert evaluation_of(run_dir)["scores"] == expected
    one = load_params(open_run(run_dir), checkpoint="auto", mesh=open_mesh(one_device=True))
    assert one.mesh.size == 1
    records = records_of(run_dir / "predictions" / "dev.jsonl")
    for batch_size in (1, 7):
        found = predict_dev(run_dir, one, one.params, batch_size)
        assert found == [record["prediction"] for record in records]
    broken = jax.tree.map(lambda leaf: leaf * np.nan, one.params)
    with refuses("predict.not_finite", kind=Diverged):
        predict_dev(run_dir, one, broken, 7)


def held_while_writing(run_dir: Path, rows: int, output: Path, patch: pytest.MonkeyPatch) -> int:
    """Returns the bytes that `predict` allocates from its first batch on, at most at a time."""
    start, held = BucketedInference.__call__, list[int]()

    def started(self: BucketedInference, *arguments: Any) -> Any:
        if not held:
            tracemalloc.reset_peak()
            held.append(tracemalloc.get_traced_memory()[0])
        return start(self, *arguments)

    table = write_table(output.parent, rows, 3)
    with patch.context() as context:
        context.setattr(BucketedInference, "__call__", started)
        tracemalloc.start()
        ok("predict", run_dir, output, "--input", table, "--batch-size", 32)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(output.read_bytes().splitlines()) == rows + (output.suffix == ".csv")
    return peak - held[0]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_predictions_are_written_as_they_are_computed(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(predictor, "WINDOW_BATCHES", 4, raising=False)
    ok("predict", tuned / "tuned", tmp_path / "warm.csv", "--input", write_table(tmp_path, 200, 2))
    few, many = (
        held_while_writing(tuned / "tuned", rows, tmp_path / f"{rows}.{suffix}", monkeypatch)
        for rows in (500, 2500)
    )
    assert many - few < 2000 * 400  # of a labelled row, only the label and the prediction remain


def test_a_failed_prediction_leaves_the_old_file(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, numbers = tmp_path / "found.jsonl", itertools.count()
    ask = ("predict", tuned / "tuned", output, "--input", write_table(tmp_path, 40, 5), "--force")
    ok(*ask)
    before, make = output.read_bytes(), SequenceSplit.records

    def fail_at_the_third(*arguments: Any, **options: Any) -> Any:
        if next(numbers) == 2:
            raise UserError("test.full", "broken", place="test")
        return make(*arguments, **options)

    monkeypatch.setattr(predictor, "WINDOW_BATCHES", 1, raising=False)
    monkeypatch.setattr(SequenceSplit, "records", fail_at_the_third)
    assert refused(*ask, "--batch-size", 8).key == "test.full"
    assert output.read_bytes() == before
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".jsonl"}


def test_predict_works_with_and_without_labels(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narration, "LAST_LINE_SECONDS", 0.0)
    labelled = write_table(tmp_path, 20, 9)
    said = ok("predict", tuned / "tuned", tmp_path / "with.jsonl", "--input", labelled)
    assert "accuracy" in said
    assert "/with.jsonl: 20 rows\n" in said
    assert "rows" not in said.splitlines()[-1]
    assert "predicting: 20 of 20 rows: " in said
    with labelled.open() as file:
        rows = list(csv.DictReader(file))
    bare = tmp_path / "bare.csv"
    # Blank lines are not rows.
    bare.write_text("text\n\n" + "".join(f"{row['text']}\n\n" for row in rows))
    ask = ("predict", tuned / "tuned", tmp_path / "p.csv", "--input", bare, "--probabilities")
    assert "accuracy" not in ok(*ask)
    records = records_of(tmp_path / "with.jsonl")
    with (tmp_path / "p.csv").open() as file:
        for row, record in zip(csv.DictReader(file), records, strict=True):
            assert row["prediction"] == record["prediction"]
            shown = {name: float(row[f"probability:{name}"]) for name in ("bad", "good")}
            assert shown == pytest.approx(record["probabilities"])
    assert [record["text"] for record in records] == [row["text"] for row in rows]
    assert [record["id"] for record in records] == list(range(20))
    # Regression test: labels were read only if the first row of the batch had a label.
    lines = [f"{row['text']},{'' if n % 3 else row['label']}" for n, row in enumerate(rows)]
    for some in (lines, lines[::-1]):
        (tmp_path / "some.csv").write_text("\n".join(["text,label", *some]))
        ask = (
            "predict",
            tuned / "tuned",
            tmp_path / "some.jsonl",
            "--input",
            tmp_path / "some.csv",
        )
        said = ok(*ask, "--force")
        found = records_of(tmp_path / "some.jsonl")
        right = [r["label"] == r["prediction"] for r in found if r["label"] is not None]
        assert len(right) == 7
        assert f"accuracy {np.mean(right):.1%}" in said
        assert "7 of 20 rows" in said
        predicted = {record["text"]: record["prediction"] for record in records}
        assert {record["text"]: record["prediction"] for record in found} == predicted
    made = bert_jax.load(tuned / "tuned").predict(
        [{"text": "good1 good2", "label": "good"}, {"text": "bad1 bad2"}]
    )
    assert [record["label"] for record in made] == ["good", None]


def test_an_exported_run_classifies_alike_and_by_name(tuned: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    ok("export", tuned / "tuned", tmp_path / "tf", "--to", "tf")
    ok("export", tuned / "tuned", tmp_path / "hf")
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    names: Any = model.config.id2label
    records = records_of(tuned / "tuned" / "predictions" / "dev.jsonl")
    with torch.inference_mode():
        inputs = tokenizer([r["text"] for r in records], padding=True, return_tensors="pt")
        found = model(**inputs).logits.softmax(-1).numpy()
    ours = [[r["probabilities"][names[at]] for at in range(2)] for r in records]
    np.testing.assert_allclose(found, ours, atol=1e-4)


def test_a_stopped_run_resumes_bit_for_bit(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, again = tuned / "config.yaml", f"run_dir={tmp_path / 'stopped'}"
    evaluated = Predictor.__call__

    def stop(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluated(*arguments)

    monkeypatch.setattr(Predictor, "__call__", stop)
    result = invoke("finetune", config, again)
    assert result.exit_code == INTERRUPTED, result.output
    assert not (tmp_path / "stopped" / "evaluation.json").exists()
    monkeypatch.undo()
    assert "resuming at step" in ok("finetune", config, again)
    whole, stopped = params_of(tuned / "tuned"), params_of(tmp_path / "stopped")
    assert whole.keys() == stopped.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(stopped[name], value, err_msg=name)
    # The configurations differ only in the directory, so all metrics are equal.
    assert read_metrics(tmp_path / "stopped", kind="validation") == read_metrics(
        tuned / "tuned", kind="validation"
    )


def test_a_run_without_progress_stops_early_with_a_warning(tmp_path: Path) -> None:
    path = config_file(
        tmp_path, epochs=6, patience=2, max_length=8, optimizer={"learning_rate": 1e-9}
    )
    said = ok("finetune", path)
    assert "stopped at step 30: 2 evaluations" in said
    (warning,) = (line for line in said.splitlines() if "WARNING" in line)
    tried = ("accuracy 50.0%, best constant answer 50.0%", "learning_rate (now 1e-09", "(now 6)")
    assert all(part in warning for part in tried), warning
    found = evaluation_of(tmp_path / "tuned")
    assert (found["constant_score"], found["failure"]) == (0.5, "predicts nothing but good")
    assert "Warning: the model learnt nothing" in (tmp_path / "tuned" / "report.html").read_text()
    # The warning is repeated by an evaluation, and by a restart of the finished run.
    assert warning in ok("evaluate", tmp_path / "tuned").splitlines()
    again = ok("finetune", path)
    assert "resuming at step 30" in again
    assert warning in again.splitlines()
    steps = [line["step"] for line in read_metrics(tmp_path / "tuned", kind="validation")]
    assert steps == [10, 20, 30]


def test_frozen_layers_keep_bits_and_changed_data_are_refused(tmp_path: Path) -> None:
    frozen = {"learning_rate": 1e-3, "freeze": ["embeddings", "layers.0"]}
    config = config_file(tmp_path, layers=2, epochs=1, max_length=8, optimizer=frozen)
    ok("finetune", config)
    section = yaml.safe_load(config.read_text())["finetune"]
    before, after = params_of(Path(section["init_from"])), params_of(tmp_path / "tuned")
    for name, value in before.items():
        if "embeddings" in name:
            np.testing.assert_array_equal(after[name], value, err_msg=name)
        elif "layers" in name:
            np.testing.assert_array_equal(after[name][0], value[0], err_msg=name)
    kernels = [name for name in before if "layers" in name and "kernel" in name]
    assert kernels
    assert all((after[name][1] != before[name][1]).any() for name in kernels)

    train = Path(section["task"]["train"])
    flip = {"good": "bad", "bad": "good"}
    lines = [line.rsplit(",", 1) for line in train.read_text().splitlines()]
    train.write_text("".join(f"{text},{flip.get(label, label)}\n" for text, label in lines))
    said = refused("finetune", config)
    assert said.key == "run.other_setting"
    says(said, place="finetune.task: train")
    assert "--allow-data-change" in said
    ok("finetune", config, "--allow-data-change")
    (change,) = json.loads((tmp_path / "tuned" / "provenance.json").read_text())["changes"]
    assert change["content"] == "train"
    ok("finetune", config)  # the run has recorded the flipped data


def test_a_hugging_face_origin_is_pinned_by_contents(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exported head has the same labels, so the new run starts from that head."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(tmp_path)
    ok("export", tuned / "tuned", "hf")
    values = yaml.safe_load((tuned / "config.yaml").read_text())
    values["finetune"] |= {"init_from": "hf", "epochs": 1}
    values["finetune"]["optimizer"] = {"learning_rate": 1e-9}
    write_config(Path("config.yaml"), values | {"run_dir": "second"})
    assert "fresh" not in ok("finetune", "config.yaml")
    assert evaluation_of(Path("second"))["scores"] == evaluation_of(tuned / "tuned")["scores"]
    origin = json.loads(Path("second", "provenance.json").read_text())["init_from"]
    assert re.fullmatch("hf@[0-9a-f]{64}", origin)
    own = yaml.safe_load(Path("second", "config.yaml").read_text())
    assert own["finetune"]["init_from"] == origin
    (imported,) = (cache / "bert_jax" / "models").glob("*/*/config.yaml")
    assert imported.parent.name == origin
    # Changed contents are refused when the run resumes, and when the old pin is requested.
    settings = Path("hf", "config.json")
    settings.write_text(settings.read_text() + "\n")
    line = refused("finetune", "config.yaml")
    says(line, key="run.other_setting", place="finetune.init_from")
    pinned = f"finetune.init_from={origin}"
    ok("finetune", "config.yaml", pinned)  # from the cache
    shutil.rmtree(cache)
    line = refused("finetune", "config.yaml", pinned, "run_dir=third")
    says(line, key="import.changed", place="hf")
    assert not Path("third").exists()


def test_every_seed_splits_off_the_same_dev_set(tuned: Path) -> None:
    def texts(seed: int) -> list[str]:
        override = [f"seed={seed}", "finetune.task.dev=null"]
        settings = finetune_settings(load_config(tuned / "config.yaml", override))
        split = prepare(settings).family.splits["dev"]
        return [str(split.row(at).sequences) for at in range(split.examples)]

    assert texts(1) == texts(2)
