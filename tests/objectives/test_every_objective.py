"""Tests of every registered objective, on every encoder that can have its heads."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import transformers

from bert_jax.data.dataset.reader import Example
from bert_jax.data.loader.packing import PackingPlan
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskingSection, TokenMasker
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.encoders.registry import SECTIONS
from bert_jax.model.section import HeadsSection
from bert_jax.objectives import electra as replaced_token_detection
from bert_jax.objectives.registry import OBJECTIVES, make_objective, read_objective
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.task import DELTAS
from bert_jax.text import SpecialIds
from bert_jax.train.state import define_model
from bert_jax.workflows.objective_of_run import objective_of
from tests.model.parts import fresh_params, model_of
from tests.objectives.runs import assert_equal_params, config_of, resumed, variant_of
from tests.objectives.teachers import frozen_params
from tests.project import ok, one_phase, refused, refuses, says, write_config
from tests.support import loss_of, relative_error, small_encoder
from tests.train.harness import Setting, assert_same, mesh_of, one_device, run_steps

pytestmark = pytest.mark.slow  # one process runs the whole file, so it starts early

STEPS = 3  # optimizer steps of comparisons
CASES = [
    (objective, encoder)
    for objective, section in OBJECTIVES.items()
    for encoder in SECTIONS
    if section.heads.of_pretraining <= SECTIONS[encoder].pretraining_heads().of_pretraining
    # DistilBERT has BERT's network and BERT's loss: train it only as the student of a distillation.
    and (objective == "distill") == (encoder == "distilbert")
    # ALBERT has BERT's heads and layers: the tests of the mesh are enough for its shared layers.
    and encoder != "albert"
] + [("causal", "albert")]
# RoBERTa and ELECTRA have BERT's network: only their positions and heads have code of their own.
# `sop` has the loss of `bert`, and `roberta`, which trains ModernBERT, a part of it.
NETWORKS = [
    (objective, encoder)
    for objective, encoder in CASES
    if (encoder == "bert" and objective not in ("sop", "roberta"))
    or encoder == "modernbert"
    or objective in ("electra", "distill")
]
# Of other encoders than BERT, `causal` changes only the attention. They train as usual.
RUNS = [case for case in CASES if case[0] != "causal" or case[1] == "bert"]
OF_VARIANTS = [
    ("disentangled electra", "electra"),
    ("shared attention", "albert"),
]
TRAINED = [case for case in RUNS if case in NETWORKS]
# Only `make chaos` takes these through every verb. The others have each encoder and each loss.
RARELY = [("sop", "bert"), ("roberta", "electra"), ("disentangled electra", "electra")]


def on_encoders(cases: list[tuple[str, str]], *, rarely: Collection[tuple[str, str]] = ()) -> Any:
    """Returns the mark for a test of each case. `make chaos` runs those in `rarely`."""
    marked = [
        pytest.param(*case, id=" on ".join(case), marks=[pytest.mark.chaos] * (case in rarely))
        for case in cases
    ]
    return pytest.mark.parametrize(("objective", "encoder"), marked)


every_network = on_encoders(NETWORKS)


@pytest.mark.parametrize(
    ("encoder", "lacking"),
    [("modernbert", ["next_sentence", "pooler"]), ("roberta", ["next_sentence"])],
)
def test_an_encoder_without_the_heads_is_refused(encoder: str, lacking: list[str]) -> None:
    section = read_objective({"kind": "sop"}, source="test")
    parts: Any = {"execution": None, "tokenizer": None}
    found: dict[str, Any] = {"found": "sop", "encoder": encoder, "lacking": lacking}
    found["allowed"] = ["roberta", "causal", "distill"]
    with refuses("objective.encoder", place="objective.kind", **found):
        make_objective(section, architecture=small_encoder(encoder), **parts)


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ELECTRA's generator choose the most probable piece, in any row."""
    monkeypatch.setattr(replaced_token_detection, "drawn", lambda logits, key: logits.argmax(-1))


@every_network
@pytest.mark.usefixtures("greedy")
def test_the_first_loss_is_that_of_a_uniform_guess(objective: str, encoder: str) -> None:
    losses, _ = one_device(Setting(objective=objective, encoder=encoder), STEPS)
    heads = OBJECTIVES[objective].heads
    two_classes = heads.next_sentence + 50 * heads.replaced_tokens
    expected = math.log(250) + two_classes * math.log(2)
    if objective == "distill":  # both guess alike, and hidden states are orthogonal
        expected = 2.0 * math.log(250) + 1.0
    assert losses[0] == pytest.approx(expected, rel=0.04)


@on_encoders([*TRAINED, ("sop", "albert"), *OF_VARIANTS], rarely=OF_VARIANTS)
def test_meshes_and_microbatches_do_not_change_the_training(objective: str, encoder: str) -> None:
    """Neither do they change masks of dropout and ELECTRA's draws."""
    setting = Setting(objective=objective, encoder=encoder, dropout=0.1)
    slices_fsdp_tensor = (2, 1, 2, 2)
    found = run_steps(dataclasses.replace(setting, accumulation=2), slices_fsdp_tensor, STEPS)
    assert_same(found, one_device(setting, STEPS))


SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
SEQ_LENGTH = 48
LENGTHS = (5, 48, 9, 21, 30, 7, 12, 17, 48, 33, 6, 11, 40)

Batch = dict[str, np.ndarray]


def examples() -> list[Example]:
    """Returns examples. Every third example has one span, so its pair label has weight 0."""
    rng, made = np.random.default_rng(0), []
    for index, length in enumerate(LENGTHS):
        ids = rng.integers(5, 250, length).astype(np.uint16)
        ids[0], ids[length // 2], ids[-1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
        first = length if index % 3 == 0 else length // 2 + 1
        made.append(Example(ids, first, index % 2 if first < length else 0))
    return made


def streams() -> list[np.random.Generator]:
    return [stream(1, "mask", index) for index in range(len(LENGTHS))]


def row_maker(max_examples: int, pairs: bool) -> MaskingTransform:
    masking = MaskingSection()
    predictions = masking.predictions(SEQ_LENGTH)
    masker = TokenMasker(masking, predictions, SPECIAL, 250, np.zeros(250, bool))
    return MaskingTransform(SEQ_LENGTH, masker, max_examples=max_examples, pairs=pairs)


def unpacked_batch(*, pairs: bool = True) -> Batch:
    return row_maker(1, pairs).batch([[one] for one in examples()], [[one] for one in streams()])


def packed_batch(*, pairs: bool = True) -> Batch:
    made, drawn = examples(), streams()
    plan = PackingPlan(np.bincount(LENGTHS), capacity=SEQ_LENGTH, max_examples=4)
    slots = [plan.examples(row) for row in range(plan.rows)]
    rows = [
        [int(np.flatnonzero(np.equal(LENGTHS, slot.length))[slot.rank]) for slot in of_row]
        for of_row in slots
    ]
    assert len(rows) < len(LENGTHS) / 1.5
    batch = row_maker(4, pairs).batch(
        [[made[index] for index in row] for row in rows],
        [[drawn[index] for index in row] for row in rows],
    )
    # Add an empty row, which must not change the loss.
    return {name: np.pad(a, [(0, 1)] + [(0, 0)] * (a.ndim - 1)) for name, a in batch.items()}


class Losses(NamedTuple):
    """The loss of a batch, its metrics and its gradient."""

    loss: float
    metrics: dict[str, tuple[float, float]]
    gradient: Any


@functools.cache
def loss_function(setting: Setting) -> Any:
    """Returns the function from batches to `Losses`."""
    task = setting.task
    rng, fresh = np.random.default_rng(3), jax.device_get(fresh_params(task))
    # Large parameters: with small parameters, attention would be nearly uniform.
    params = jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.1, leaf.shape).astype("f4"), fresh)

    frozen = frozen_params(task, mesh_of((1, 1, 1)))

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def compute(params: Any, batch: Any) -> Any:
        return loss_of(task, model_of(task, params), batch, frozen=frozen)

    def losses(batch: Batch) -> Losses:
        (loss, metrics), gradient = jax.device_get(compute(params, batch))
        return Losses(float(loss), metrics, gradient)

    return losses


@on_encoders(CASES)
@pytest.mark.usefixtures("greedy")
def test_packed_rows_have_the_loss_and_gradients_of_single_rows(
    objective: str, encoder: str
) -> None:
    losses = loss_function(Setting(objective=objective, encoder=encoder))
    pairs = OBJECTIVES[variant_of(objective).kind].heads.next_sentence
    expected, found = losses(unpacked_batch(pairs=pairs)), losses(packed_batch(pairs=pairs))
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    for name, (total, count) in expected.metrics.items():
        if np.ndim(total):  # a histogram, in which rounding moves a score to the next bin
            assert found.metrics[name][0].sum() == total.sum() > 0, name
            continue
        assert found.metrics[name][0] == pytest.approx(float(total), rel=1e-5), name
        assert float(found.metrics[name][1]) == float(count) > 0, name
    leaves = jax.tree_util.tree_leaves_with_path(expected.gradient)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(found.gradient), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        # Softmax cancels a key's bias, so its gradient is rounding error in most losses.
        if "key/bias" not in name or max(np.abs(leaf).max(), np.abs(other).max()) > 1e-5:
            assert relative_error(other, leaf) < 1e-5, name


@pytest.mark.parametrize("lost", ["segment_ids", "position_ids", "cls_positions"])
def test_each_separation_of_packed_examples_is_needed(lost: str) -> None:
    losses, batch = loss_function(Setting()), packed_batch()
    whole_row = {
        "segment_ids": np.minimum(batch["segment_ids"], 1),
        "position_ids": np.broadcast_to(np.arange(SEQ_LENGTH), batch["position_ids"].shape),
        "cls_positions": np.zeros_like(batch["cls_positions"]),
    }
    changed = losses(batch | {lost: whole_row[lost]})
    assert abs(changed.loss - losses(unpacked_batch()).loss) > 1e-3


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
    assert_equal_params(resumed(config, run_dir, tmp_path), run_dir)


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
    ok("export", run_dir, exported, "--to", "hf")
    (name,) = json.loads((exported / "config.json").read_text())["architectures"]
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
    for (config, _), origin, what in (
        (roberta, bert.run_dir, "not loaded"),
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


@on_encoders([("distill", "distilbert"), *OF_VARIANTS], rarely=OF_VARIANTS)
def test_a_run_with_a_second_model_is_fine_tuned_and_exported(
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
    names = {"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra"}
    assert type(model).__name__ == f"{names[encoder]}ForSequenceClassification"
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
