"""The files in which `evaluate` writes scores, and how `predict` uses the scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import BertForPreTraining

from bert_jax import narration
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.encoders.bert.section import BertSection
from bert_jax.model.section import HeadsSection
from bert_jax.tasks.family import task_heads
from bert_jax.verbs.import_checkpoint import import_checkpoint
from tests.interop.hf_checkpoints import hf_config, hf_model
from tests.project import VOCAB_SIZE, ok, refused, says
from tests.tasks.runs import tiny_run
from tests.tasks.squad_data import question, squad, write

BEST, LAST = 10, 20


def squad_run(directory: Path) -> tuple[Path, str]:
    """A run fine-tuned on SQuAD 2.0, with two checkpoints, and a file to predict."""
    file = squad(
        ("word1 good1 word2", [question("a", "word1", ("good1", 6), impossible=False)]),
        ("word3 good2 word4", [question("b", "word3", impossible=True)]),
        version="v2.0",
    )
    paths = {role: write(directory / f"{role}.json", file) for role in ("train", "dev", "test")}
    finetune = {
        "init_from": "unused",
        "task": {"kind": "squad", "version": "2.0", "max_query_length": 4, **paths},
        "max_length": 32,
        "batch_size": 8,
    }
    heads = HeadsSection(pooler=False, mlm=False, next_sentence=False, task="question_answering")
    run = tiny_run(directory, heads=heads, config={"finetune": finetune}, steps=(BEST, LAST))
    return run, paths["test"]


def tune(path: Path, threshold: float) -> None:
    """Replaces the tuned threshold of an evaluation."""
    found = json.loads(path.read_text())
    found["scores"]["null_threshold"] = threshold
    path.write_text(json.dumps(found))


def answers(run: Path, file: str, *options: object) -> set[bool]:
    """Predicts a file. Returns {True} if every prediction has an answer, {False} if none has."""
    output = run / "out.jsonl"
    ok("predict", run, output, "--input", file, "--force", *options)
    return {bool(json.loads(line)["prediction"]) for line in output.read_text().splitlines()}


def test_every_evaluation_and_threshold_is_kept_apart(
    tmp_path: Path,
) -> None:
    run, file = squad_run(tmp_path)
    line = refused("predict", run, tmp_path / "o.jsonl", "--input", file)
    says(line, key="squad.no_threshold", step=LAST)
    assert f"bert-jax evaluate {run} --checkpoint {LAST}" in line
    ok("evaluate", run)  # without a ranking score, `auto` is the last checkpoint
    before = (run / "evaluation.json").read_bytes()
    assert {"step": LAST, "split": "dev", "examples": 2}.items() <= json.loads(before).items()
    ok("evaluate", run, "--split", "test")
    ok("evaluate", run, "--checkpoint", BEST)
    assert (run / "evaluation.json").read_bytes() == before
    others = {path.name for path in (run / "evaluations").iterdir()}
    assert others == {f"test-{LAST}.json", f"dev-{BEST}.json"}
    # The first threshold accepts every answer, the second threshold accepts none.
    tune(run / "evaluation.json", 1e9)
    tune(run / "evaluations" / f"dev-{BEST}.json", -1e9)
    assert answers(run, file) == {True}
    assert answers(run, file, "--checkpoint", BEST) == {False}
    # Predictions depend on the scores in the file, so damaged scores are refused.
    whole = json.loads(before)
    for change in ({"scores": []}, {"scores": {"f1": "²"}}, {"examples": 1.5}):
        (run / "evaluation.json").write_text(json.dumps(whole | change))
        line = refused("predict", run, tmp_path / "o.jsonl", "--input", file, "--force")
        assert line.key == "evaluation.damaged"
        assert line.place.startswith(f"{run / 'evaluation.json'}: {next(iter(change))}")


def test_probabilities_are_refused_before_predicting(tmp_path: Path) -> None:
    heads = BertSection().of_task(
        task_heads("sequence_classification", labels=("label",), problem="regression")
    )
    task = {"kind": "table", "text": "text", "label": "label"}
    config = {"finetune": {"init_from": "unused", "task": task}}
    run = tiny_run(tmp_path, heads=heads, config=config)
    (tmp_path / "in.csv").write_text("text\nword1\n")
    ask = ("predict", run, tmp_path / "out.csv", "--input", tmp_path / "in.csv", "--probabilities")
    # The option is checked before the checkpoint, which is missing.
    for more in ((), ("--checkpoint", 99)):
        assert refused(*ask, *more).key == "predict.probabilities"
    assert not (tmp_path / "out.csv").exists()
    (tmp_path / "squad").mkdir()
    line = refused("predict", squad_run(tmp_path / "squad")[0], *ask[2:])
    assert line.key == "predict.probabilities"


@pytest.fixture
def imported(project: Path, tmp_path: Path) -> Path:
    """A run imported from a Hugging Face checkpoint, with the project's tokenizer."""
    config = hf_config(vocab_size=VOCAB_SIZE, max_position_embeddings=48)
    hf_model(BertForPreTraining, config).save_pretrained(tmp_path / "hf")
    tokenizer = str(project / "tokenizer")
    return import_checkpoint(str(tmp_path / "hf"), str(tmp_path / "run"), tokenizer=tokenizer)


def test_an_imported_run_is_evaluated_at_the_datas_length(
    project: Path, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narration, "LAST_LINE_SECONDS", 0.0)
    assert refused("evaluate", imported).key == "evaluate.no_dataset"
    said = ok("evaluate", imported, "--dataset", project / "dataset32", "--batch-size", 12)
    found: dict[str, Any] = json.loads((imported / "evaluation.json").read_text())
    assert f"evaluating {found['examples']:,} examples: " in said
    assert found["examples"] == len(open_dataset(project / "dataset32", "validation"))
    assert found["split"] == "validation"
    assert found["scores"]["mlm_loss"] == pytest.approx(np.log(VOCAB_SIZE), rel=0.2)
