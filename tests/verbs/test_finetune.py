"""`finetune`, `evaluate` and `predict` on a table, as a user runs them."""

import csv
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

import bert_jax
from bert_jax import narration
from bert_jax.errors import Diverged
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.stop_signal import INTERRUPTED
from bert_jax.runs.checkpoints import LoadedParams, load_params
from bert_jax.runs.directory import open_run
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.training.evaluation import open_data
from bert_jax.train.example_log import times_seen
from bert_jax.train.writer import read_metrics
from tests.project import invoke, ok, refused
from tests.tasks.runs import tiny_config, write_table


def config_file(directory: Path, **changes: Any) -> Path:
    path = directory / "config.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(tiny_config(directory, **changes)), encoding="utf-8")
    return path


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def params_of(run_dir: Path) -> dict[str, np.ndarray]:
    found = load_params(open_run(run_dir), checkpoint="last").params
    return {jax.tree_util.keystr(k): np.asarray(v) for k, v in jax.tree.leaves_with_path(found)}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned run, in the directory of its configuration and tables."""
    root = tmp_path_factory.mktemp("tuned")
    # With dropout, since a run that was stopped goes on bit for bit.
    changes = {"epochs": 3, "optimizer": {"learning_rate": 2e-3}, "example_log": True}
    changes |= {"dropout": 0.1}
    (root / "said.txt").write_text(ok("finetune", config_file(root, **changes)), encoding="utf-8")
    return root


def test_a_run_learns_and_leaves_all_that_is_promised(tuned: Path) -> None:
    run_dir = tuned / "tuned"
    evaluation = json.loads((run_dir / "evaluation.json").read_text())
    scores = evaluation["scores"]
    assert scores["accuracy"] > 0.8
    assert (evaluation["constant_score"], evaluation["failure"]) == (0.5, None)
    assert "WARNING" not in (tuned / "said.txt").read_text(encoding="utf-8")
    records = records_of(run_dir / "predictions" / "dev.jsonl")
    right = [record["label"] == record["prediction"] for record in records]
    assert np.mean(right) == pytest.approx(scores["accuracy"])
    assert "<html" in (run_dir / "report.html").read_text()
    assert [line["step"] for line in read_metrics(run_dir, kind="validation")] == [10, 20, 30]
    assert open_run(run_dir).heads.labels == ("bad", "good")


def test_few_dev_rows_of_two_lengths_have_one_program(tuned: Path) -> None:
    config = yaml.safe_load((tuned / "config.yaml").read_text())["finetune"]
    lines = Path(config["task"]["dev"]).read_text(encoding="utf-8").splitlines()[1:]
    assert {len(line.split()) for line in lines} == {4, 18}
    # Three evaluations, and the best checkpoint's.
    said = (tuned / "said.txt").read_text(encoding="utf-8")
    assert len(re.findall(r"compiling the model for .* …", said)) == 1, said
    said = ok("evaluate", tuned / "tuned")
    assert len(re.findall(r"compiling the model for .* …", said)) == 1, said


def test_dev_is_predicted_with_as_many_rows_at_a_time_as_training_has(tmp_path: Path) -> None:
    file = config_file(tmp_path, epochs=1, batch_size=32, accumulation=2)
    rows = re.compile(r"compiling the model for (\d+) × ")
    assert set(rows.findall(ok("finetune", file))) == {"16"}
    assert set(rows.findall(ok("evaluate", tmp_path / "tuned"))) == {"16"}


def test_every_epoch_has_every_row_once(tuned: Path) -> None:
    seen = times_seen(tuned / "tuned")
    assert [epoch.epoch for epoch in sorted(seen)] == [0, 1, 2]
    (rows,) = {len(rows) for rows in seen.values()}
    assert rows > 100
    for epoch in seen.values():
        assert epoch == dict.fromkeys(range(rows), 1)


def test_the_same_command_again_changes_nothing(tuned: Path) -> None:
    before = (tuned / "tuned" / "evaluation.json").read_bytes()
    assert "resuming at step 30 of 30" in ok("finetune", tuned / "config.yaml")
    assert "resuming at step 30 of 30" in ok("finetune", tuned / "tuned" / "config.yaml")
    assert (tuned / "tuned" / "evaluation.json").read_bytes() == before


def test_other_settings_in_the_same_directory_are_refused(tuned: Path) -> None:
    result = refused("finetune", tuned / "config.yaml", "finetune.optimizer.learning_rate=1e-4")
    assert "finetune.optimizer.learning_rate: found 0.0001, but" in result
    assert "holds a run with 0.002" in result


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_figures_do_not_depend_on_batch_size_or_devices(tuned: Path, batch_size: int) -> None:
    run_dir = tuned / "tuned"
    expected = json.loads((run_dir / "evaluation.json").read_text())["scores"]
    ok("evaluate", run_dir, "--batch-size", batch_size)
    assert json.loads((run_dir / "evaluation.json").read_text())["scores"] == expected
    one = load_params(open_run(run_dir), checkpoint="auto", mesh=open_mesh(one_device=True))
    assert one.mesh.size == 1
    records = records_of(run_dir / "predictions" / "dev.jsonl")
    found = predict_dev(run_dir, one, one.params, batch_size)
    assert found == [record["prediction"] for record in records]


def test_a_model_that_has_diverged_makes_no_records(tuned: Path) -> None:
    loaded = load_params(open_run(tuned / "tuned"), checkpoint="auto")
    broken = jax.tree.map(lambda leaf: leaf * np.nan, loaded.params)
    with pytest.raises(Diverged, match=r"row \d+: found NaN or infinity, allowed: finite"):
        predict_dev(tuned / "tuned", loaded, broken, 16)


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


def test_predictions_of_a_file_with_and_without_labels(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narration, "LAST_LINE_SECONDS", 0.0)
    labelled = write_table(tmp_path, 20, 9)
    said = ok("predict", tuned / "tuned", tmp_path / "with.jsonl", "--input", labelled)
    assert "accuracy" in said
    assert "predicting: 20 of 20 rows: " in said
    with labelled.open() as file:
        rows = list(csv.DictReader(file))
    bare = tmp_path / "bare.csv"
    # A blank line is no row, nor is the last.
    bare.write_text("text\n\n" + "".join(f"{row['text']}\n\n" for row in rows))
    said = ok("predict", tuned / "tuned", tmp_path / "without.csv", "--input", bare)
    assert "accuracy" not in said
    records = records_of(tmp_path / "with.jsonl")
    with (tmp_path / "without.csv").open() as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == [
            record["prediction"] for record in records
        ]
    assert [record["text"] for record in records] == [row["text"] for row in rows]
    assert [record["id"] for record in records] == list(range(20))
    ok("predict", tuned / "tuned", tmp_path / "p.csv", "--input", bare, "--probabilities")
    with (tmp_path / "p.csv").open() as file:
        for row, record in zip(csv.DictReader(file), records, strict=True):
            shown = {name: float(row[f"probability:{name}"]) for name in ("bad", "good")}
            assert shown == pytest.approx(record["probabilities"])


def test_rows_with_and_without_a_label_are_predicted_together(tuned: Path, tmp_path: Path) -> None:
    lines = write_table(tmp_path, 20, 9).read_text().splitlines()
    whole, some = tmp_path / "whole.jsonl", tmp_path / "some.jsonl"
    said = ok("predict", tuned / "tuned", whole, "--input", tmp_path / "rows-20-9.csv")
    assert "rows" not in said.splitlines()[-1]
    # Whether the first row of a batch has a label made the difference.
    bare = [line.rpartition(",")[0] + "," if n % 3 else line for n, line in enumerate(lines[1:])]
    for rows in (bare, bare[::-1]):
        (tmp_path / "some.csv").write_text("\n".join([lines[0], *rows]))
        said = ok("predict", tuned / "tuned", some, "--input", tmp_path / "some.csv", "--force")
        records = records_of(some)
        labelled = [record for record in records if record["label"] is not None]
        right = np.mean([record["label"] == record["prediction"] for record in labelled])
        assert len(labelled) == 7
        assert f"accuracy {right:.1%}" in said
        assert "7 of 20 rows" in said
    predicted = {record["text"]: record["prediction"] for record in records_of(whole)}
    assert {record["text"]: record["prediction"] for record in records} == predicted
    found = bert_jax.load(tuned / "tuned").predict(
        [{"text": "good1 good2", "label": "good"}, {"text": "bad1 bad2"}]
    )
    assert [record["label"] for record in found] == ["good", None]


def test_an_exported_run_classifies_alike_and_by_name(tuned: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    ok("export", tuned / "tuned", tmp_path / "hf")
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    records = records_of(tuned / "tuned" / "predictions" / "dev.jsonl")
    with torch.inference_mode():
        inputs = tokenizer([r["text"] for r in records], padding=True, return_tensors="pt")
        found = model(**inputs).logits.softmax(-1).numpy()
    ours = [[r["probabilities"][model.config.id2label[at]] for at in range(2)] for r in records]
    np.testing.assert_allclose(found, ours, atol=1e-4)


def test_a_stopped_run_goes_on_bit_for_bit(
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
    assert times_seen(tmp_path / "stopped") == times_seen(tuned / "tuned")
    # The configuration names the directory; all figures are the same.
    assert read_metrics(tmp_path / "stopped", kind="validation") == read_metrics(
        tuned / "tuned", kind="validation"
    )


def test_a_run_that_gets_no_better_ends_early_and_is_told(tmp_path: Path) -> None:
    path = config_file(
        tmp_path, epochs=6, patience=2, max_length=8, optimizer={"learning_rate": 1e-9}
    )
    said = ok("finetune", path)
    assert "ended at step 30: 2 evaluations without a better accuracy" in said
    (warning,) = (line for line in said.splitlines() if "WARNING" in line)
    tried = ("accuracy 50.0%, best constant answer 50.0%", "learning_rate (now 1e-09", "(now 6)")
    assert all(part in warning for part in tried), warning
    found = json.loads((tmp_path / "tuned" / "evaluation.json").read_text())
    assert (found["constant_score"], found["failure"]) == (0.5, "predicts nothing but good")
    assert "Warning: the model learnt nothing" in (tmp_path / "tuned" / "report.html").read_text()
    # So is an evaluation, and the run that has ended and stays so.
    assert warning in ok("evaluate", tmp_path / "tuned").splitlines()
    again = ok("finetune", path)
    assert "resuming at step 30" in again
    assert warning in again.splitlines()
    steps = [line["step"] for line in read_metrics(tmp_path / "tuned", kind="validation")]
    assert steps == [10, 20, 30]


def test_frozen_layers_keep_their_bits(tmp_path: Path) -> None:
    frozen = {"learning_rate": 1e-3, "freeze": ["embeddings", "layers.0"]}
    settings = {"epochs": 1, "max_length": 8, "optimizer": frozen}
    ok("finetune", config_file(tmp_path, layers=2, **settings))
    before = params_of(Path(tiny_origin(tmp_path)))
    after = params_of(tmp_path / "tuned")
    for name, value in before.items():
        if "embeddings" in name:
            np.testing.assert_array_equal(after[name], value, err_msg=name)
        elif "layers" in name:
            np.testing.assert_array_equal(after[name][0], value[0], err_msg=name)
    kernels = [name for name in before if "layers" in name and "kernel" in name]
    assert kernels
    assert all((after[name][1] != before[name][1]).any() for name in kernels)


def tiny_origin(directory: Path) -> str:
    return yaml.safe_load((directory / "config.yaml").read_text())["finetune"]["init_from"]


def test_a_second_task_starts_from_the_first_ones_head(tuned: Path, tmp_path: Path) -> None:
    values = yaml.safe_load((tuned / "config.yaml").read_text())
    values["finetune"] |= {"init_from": str(tuned / "tuned"), "epochs": 1}
    values["finetune"]["optimizer"] = {"learning_rate": 1e-9}
    values["run_dir"] = str(tmp_path / "second")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    said = ok("finetune", tmp_path / "config.yaml")
    assert "starts fresh" not in said
    first = json.loads((tuned / "tuned" / "evaluation.json").read_text())["scores"]
    second = json.loads((tmp_path / "second" / "evaluation.json").read_text())["scores"]
    assert second == first


def test_a_hugging_face_directory_is_an_origin_pinned_by_its_contents(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(tmp_path)
    ok("export", tuned / "tuned", "hf")
    values = yaml.safe_load((tuned / "config.yaml").read_text())
    values["finetune"] |= {"init_from": "hf", "epochs": 1}
    values["finetune"]["optimizer"] = {"learning_rate": 1e-9}
    values["run_dir"] = "second"
    Path("config.yaml").write_text(yaml.safe_dump(values))
    ok("finetune", "config.yaml")
    first = json.loads((tuned / "tuned" / "evaluation.json").read_text())["scores"]
    second = json.loads(Path("second", "evaluation.json").read_text())["scores"]
    assert second == first
    origin = json.loads(Path("second", "provenance.json").read_text())["init_from"]
    assert re.fullmatch("hf@[0-9a-f]{64}", origin)
    assert tiny_origin(Path("second")) == origin
    (imported,) = (cache / "bert_jax" / "models").glob("*/config.yaml")
    assert imported.parent.name == origin
    # Other contents are another origin: for a run that goes on, and where these are asked for.
    settings = Path("hf", "config.json")
    settings.write_text(settings.read_text() + "\n")
    assert "finetune.init_from" in refused("finetune", "config.yaml")
    pinned = f"finetune.init_from={origin}"
    ok("finetune", "config.yaml", pinned)  # the cache has them
    shutil.rmtree(cache)
    line = refused("finetune", "config.yaml", pinned, "run_dir=third")
    assert "hf: found other contents" in line
    assert not Path("third").exists()


def test_the_dev_set_split_off_is_the_same_for_every_seed(tuned: Path) -> None:
    from bert_jax.config import load_config
    from bert_jax.tasks.training.setup import prepare
    from bert_jax.verbs.finetune import finetune_settings

    def texts(seed: int) -> list[str]:
        override = [f"seed={seed}", "finetune.task.dev=null"]
        settings = finetune_settings(load_config(tuned / "config.yaml", override))
        split = prepare(settings).family.splits["dev"]
        return [str(split.row(at).sequences) for at in range(split.examples)]

    assert texts(1) == texts(2)


def test_labels_that_were_flipped_are_refused(tmp_path: Path) -> None:
    config = config_file(tmp_path, epochs=1, max_length=8)
    ok("finetune", config)
    train = Path(yaml.safe_load(config.read_text())["finetune"]["task"]["train"])
    rows = train.read_text()
    flip = {"good": "bad", "bad": "good"}
    lines = [line.rsplit(",", 1) for line in rows.splitlines()]
    train.write_text("".join(f"{text},{flip.get(label, label)}\n" for text, label in lines))
    refused = invoke("finetune", config)
    assert refused.exit_code == 2, refused.output
    assert "content.train: found " in refused.output
    assert "or --allow-data-change" in refused.output
    ok("finetune", config, "--allow-data-change")
    (change,) = json.loads((tmp_path / "tuned" / "provenance.json").read_text())["changes"]
    assert change["content"] == "train"
    ok("finetune", config)  # these are its data now
