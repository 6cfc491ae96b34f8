"""Every objective in every verb that reads its runs."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import transformers

from bert_jax.interop.hf_config import format_of
from bert_jax.model.section import PRETRAINED_HEADS, HeadsSection
from bert_jax.objectives.registry import OBJECTIVES
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.task import DELTAS
from bert_jax.train.state import define_model
from bert_jax.workflows.objective_of_run import objective_of
from tests.objectives.cases import OF_VARIANTS, RARELY, RUNS, TRAINED, on_encoders
from tests.objectives.runs import assert_equal_params, config_of, resumed, variant_of
from tests.project import ok, one_phase, refused, says, write_config

pytestmark = pytest.mark.slow  # one process runs the whole file, so it starts early


@pytest.fixture(scope="module")
def datasets(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset for each objective."""
    folder, found = tmp_path_factory.mktemp("datasets"), {}
    for objective, section in OBJECTIVES.items():
        kind = section.pairings[0]
        found[objective] = project / "dataset32" if kind == "nsp" else folder / kind
        if not found[objective].exists():
            output = f"examples.output={found[objective]}"
            config = write_config(folder / "examples.yaml", one_phase(project))
            ok("examples", config, output, f"examples.kind={kind}")
    return found


class Trained(NamedTuple):
    """A finished run and its configuration."""

    config: Path
    run_dir: Path


@pytest.fixture(scope="module")
def train(
    project: Path, datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Trained]:
    """A function that trains an objective on an encoder, once for all tests."""

    @functools.cache
    def train(objective: str, encoder: str) -> Trained:
        folder = tmp_path_factory.mktemp("trained")
        kind = variant_of(objective).kind
        teacher = train("roberta", "bert").run_dir if kind == "distill" else None
        dataset = datasets[kind]
        config, run_dir = config_of(project, folder, objective, encoder, dataset, teacher=teacher)
        ok("pretrain", config)
        return Trained(config, Path(run_dir))

    return train


@on_encoders(
    [*TRAINED, *OF_VARIANTS], rarely=[*OF_VARIANTS, ("causal", "bert"), ("distill", "distilbert")]
)
def test_a_run_resumes_bit_for_bit(
    tmp_path: Path, train: Callable[[str, str], Trained], objective: str, encoder: str
) -> None:
    config, run_dir = train(objective, encoder)
    again = resumed(config, run_dir, tmp_path)
    assert_equal_params(again, run_dir)
    assert_equal_params(again, run_dir, ema=True)


@on_encoders([*RUNS, *OF_VARIANTS], rarely=RARELY)
def test_a_run_has_only_the_objectives_heads_in_every_verb(
    tmp_path: Path, train: Callable[[str, str], Trained], objective: str, encoder: str
) -> None:
    _, run_dir = train(objective, encoder)
    run, kind = open_run(run_dir), variant_of(objective).kind
    assert run.heads == OBJECTIVES[kind].heads
    assert run.settings["objective"]["kind"] == kind
    parts = set(load_params(run, checkpoint="last").params)
    heads = {part for part in parts if part in HeadsSection.model_fields}
    assert heads == run.heads.of_pretraining
    ok("evaluate", run_dir)
    scores = json.loads((run_dir / "evaluation.json").read_text())["scores"]
    assert math.isfinite(scores["loss"])
    exported = tmp_path / "exported"
    if objective == "shared attention":
        result = refused("export", run_dir, exported, "--to", "hf")
        says(result, key="export.setting", found="attention")
        ok("export", run_dir, tmp_path / "program", "--to", "stablehlo")
        return
    tensorflow = ("export", run_dir, tmp_path / "tensorflow", "--to", "tf")
    if encoder != "bert":
        assert refused(*tensorflow).key == "export.encoder"
    if encoder != "bert":
        ok("export", run_dir, tmp_path / "program", "--to", "stablehlo")
    said = ok("export", run_dir, exported, "--to", "hf")
    (name,) = json.loads((exported / "config.json").read_text())["architectures"]
    kept = format_of(encoder).class_names()[name][1]._asdict()
    lost = {PRETRAINED_HEADS[head] for head in run.heads.of_pretraining if not kept[head]}
    lines = [line for line in said.splitlines() if f"which {name} lacks" in line]
    assert len(lines) == bool(lost)
    assert all(head in lines[0] for head in lost)
    if encoder == "neobert":  # its classes are not in transformers
        return
    _, report = getattr(transformers, name).from_pretrained(exported, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


@on_encoders(TRAINED, rarely=RARELY)
def test_scores_do_not_depend_on_the_batch_size(
    train: Callable[[str, str], Trained], objective: str, encoder: str
) -> None:
    _, run_dir = train(objective, encoder)
    found = []
    for size in (8, 16, 64):
        ok("evaluate", run_dir, "--batch-size", size)
        evaluation = json.loads((run_dir / "evaluation.json").read_text())
        assert evaluation["examples"] % 16 > 0  # the last batch has rows of padding
        found.append(evaluation["scores"])
    assert found[1:] == [pytest.approx(found[0], rel=1e-5, abs=1e-6)] * 2


def test_readers_of_a_disentangled_run_see_the_sums(
    tmp_path: Path, train: Callable[[str, str], Trained]
) -> None:
    _, run_dir = train("disentangled electra", "electra")
    run = open_run(run_dir)
    trained = load_params(
        run, checkpoint="last", define=lambda run: define_model(objective_of(run).build)
    ).params
    ok("export", run_dir, tmp_path / "exported", "--to", "hf")
    exported = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "exported").electra
    own = load_params(run, checkpoint="last").params
    pairs = {"word": "word", "position": "position", "type": "token_type"}
    for name, theirs in pairs.items():
        table, delta, found = (
            np.asarray(params["encoder"]["embeddings"][name])
            for params in (trained, trained[DELTAS], own)
        )
        assert np.abs(delta).max() > 1e-5
        np.testing.assert_array_equal(found, table + delta)
        written = exported.get_parameter(f"embeddings.{theirs}_embeddings.weight")
        np.testing.assert_array_equal(written.detach(), found[: len(written)])


def test_init_from_works_across_objectives(
    tmp_path: Path, train: Callable[[str, str], Trained]
) -> None:
    bert, roberta = train("bert", "bert"), train("roberta", "bert")
    pairs, alone = train("bert", "modernbert"), train("roberta", "modernbert")
    for (config, _), origin, what in (
        (alone, pairs.run_dir, "not loaded"),
        (bert, roberta.run_dir, "randomly initialized"),
    ):
        run_dir = tmp_path / what
        said = ok("pretrain", config, f"run_dir={run_dir}", "--init-from", origin)
        assert f"{origin}: {what}: the pooler, the next-sentence head" in said
    config = bert.config
    result = refused("pretrain", config, "model.heads.next_sentence=false")
    assert result.key == "model.heads_of_objective"
    says(result, objective="bert")


def test_an_imported_model_has_the_objective_of_its_heads(
    tmp_path: Path, train: Callable[[str, str], Trained], datasets: dict[str, Path]
) -> None:
    exported, imported = tmp_path / "exported", tmp_path / "imported"
    ok("export", train("roberta", "bert").run_dir, exported, "--to", "hf")
    ok("import", exported, imported)
    assert open_run(imported).settings["objective"]["kind"] == "roberta"
    assert "mlm_loss" in ok("evaluate", imported, "--dataset", datasets["roberta"])
    result = refused("pretrain", train("bert", "bert").config, f"run_dir={imported}")
    says(result, key="run.other_heads", objective="bert")


@on_encoders([("distill", "distilbert"), ("bert", "modernbert"), *OF_VARIANTS], rarely=OF_VARIANTS)
def test_a_run_with_other_heads_or_a_second_model_is_fine_tuned_and_exported(
    tmp_path: Path, train: Callable[[str, str], Trained], objective: str, encoder: str
) -> None:
    table, tuned = tmp_path / "table.csv", tmp_path / "tuned"
    texts = ["Return a new list.", "Raise an error.", "Open the file.", "Close the file."]
    rows = [f"{text},{'ab'[at % 2]}" for at, text in enumerate(texts * 4)]
    table.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    task = {"kind": "table", "train": str(table), "dev": str(table), "text": "text"}
    settings: dict[str, Any] = {"init_from": str(train(objective, encoder).run_dir)}
    settings |= {"task": task | {"label": "label"}, "epochs": 1, "max_length": 16}
    values = {"run_dir": str(tuned), "finetune": settings}
    ok("finetune", write_config(tmp_path / "tune.yaml", values))
    if objective == "shared attention":  # Hugging Face has no such model
        ok("evaluate", tuned)
        return
    ok("export", tuned, tmp_path / "exported", "--to", "hf")
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "exported", output_loading_info=True
    )
    (start,) = format_of(encoder).model_types.values()
    assert type(model).__name__ == f"{start}ForSequenceClassification"
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
