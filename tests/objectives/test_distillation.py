"""The objective `distill`, next to the formulas of Hugging Face's script of DistilBERT."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax, softmax
from transformers import BertForMaskedLM

from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives import distill as distillation
from bert_jax.objectives.distill import Distillation
from bert_jax.objectives.registry import make_objective
from bert_jax.objectives.sections import DistillObjectiveSection
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.task import Params
from bert_jax.train.frozen import initial_params, load_frozen
from bert_jax.train.state import define_model, named, trained_params
from tests.interop.hf_checkpoints import (
    Imported,
    bind,
    hf_config,
    hf_model,
    import_run,
    mixed_batch,
    save,
    torch_inputs,
    under_their_names,
)
from tests.objectives.teachers import made_up_tokenizer, small_teacher, write_teacher
from tests.project import refuses
from tests.support import loss_of, relative_error, small_encoder
from tests.train.harness import mesh_of

ONE = (1, 1, 1)


class Pair(NamedTuple):
    """A student and its teacher as PyTorch models, and our student."""

    student: BertForMaskedLM
    teacher: BertForMaskedLM
    ours: Imported
    teacher_run: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A student of 2 layers and a teacher of 4, in different widths of the FFN."""
    folder = tmp_path_factory.mktemp("pair")
    student = hf_model(BertForMaskedLM, hf_config(), seed=1)
    teacher = hf_model(
        BertForMaskedLM, hf_config(num_hidden_layers=4, intermediate_size=48), seed=2
    )
    ours = import_run(save(student, folder / "student"), folder / "student-run")
    import_run(save(teacher, folder / "teacher"), folder / "teacher-run")
    return Pair(student, teacher, ours, folder / "teacher-run")


def task_of(pair: Pair, **settings: Any) -> Distillation:
    section = DistillObjectiveSection.model_validate({"teacher": str(pair.teacher_run), **settings})
    run = pair.ours.run
    made = make_objective(
        section,
        architecture=run.architecture,
        execution=Execution(dtype="float32"),
        tokenizer=run.tokenizer,
    )
    assert isinstance(made, Distillation)
    return made


def scripted_loss(pair: Pair, batch: dict[str, np.ndarray], *, temperature: float) -> torch.Tensor:
    """Returns the loss of Hugging Face's `distiller.py` with the weights of its README.

    The soft targets are restricted to masked tokens, as with its option `restrict_ce_to_mask`.
    """
    inputs = torch_inputs(batch)
    student = pair.student(**inputs, output_hidden_states=True)
    with torch.no_grad():
        teacher = pair.teacher(**inputs, output_hidden_states=True)
    chosen = torch.from_numpy(batch["masked_lm_weights"]) > 0
    positions = torch.from_numpy(batch["masked_lm_positions"]).long()
    row = torch.arange(len(positions))[:, None].expand_as(positions)
    labels = torch.from_numpy(batch["masked_lm_ids"]).long()[chosen]
    ours, theirs = (each.logits[row, positions][chosen] for each in (student, teacher))
    soft = torch.nn.KLDivLoss(reduction="batchmean")(
        log_softmax(ours / temperature, dim=-1), softmax(theirs / temperature, dim=-1)
    )
    is_token = inputs["attention_mask"] == 1
    states = [each.hidden_states[-1][is_token] for each in (student, teacher)]
    cosine = torch.nn.CosineEmbeddingLoss(reduction="mean")(*states, torch.ones(len(states[0])))
    return 5.0 * soft * temperature**2 + 2.0 * cross_entropy(ours, labels) + cosine


def test_the_loss_is_that_of_hugging_faces_script(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "MOST_ROWS", 20)  # two chunks: 4 and 2 predictions per row
    batch, temperature = mixed_batch(pair.student.config), 3.0
    expected = scripted_loss(pair, batch, temperature=temperature)
    expected.backward()

    task = task_of(pair, temperature=temperature)
    frozen = load_frozen(task, mesh_of(ONE)).params

    @jax.jit
    @jax.value_and_grad
    def compute(params: Any, batch: Any) -> Any:
        return loss_of(task, bind(task.build, params), batch, frozen=frozen)[0]

    found, gradient = jax.device_get(compute(pair.ours.params, batch))
    assert found == pytest.approx(expected.item(), rel=1e-6)
    run = pair.ours.run
    theirs = {name: each.grad for name, each in pair.student.named_parameters()}
    for name, ours in under_their_names(gradient, run.architecture, run.heads).items():
        other = theirs.get(name)
        assert other is not None, name
        if "key.bias" in name:  # softmax cancels this bias, so its gradient is rounding error
            assert max(np.abs(ours).max(), other.abs().max()) < 1e-5
        else:
            assert relative_error(ours, other) < 1e-4, name


def test_without_the_cosine_only_masked_tokens_are_computed(pair: Pair) -> None:
    batch = mixed_batch(pair.student.config)

    def metrics(task: Distillation) -> Any:
        frozen = load_frozen(task, mesh_of(ONE)).params
        compute = jax.jit(
            lambda params, batch: loss_of(task, bind(task.build, params), batch, frozen=frozen)[1]
        )
        return jax.device_get(compute(pair.ours.params, batch))

    tasks = [task_of(pair, cosine_weight=weight) for weight in (1.0, 0.0)]
    every, masked = map(metrics, tasks)
    assert every.keys() - masked.keys() == {"cosine_loss"}
    for name, (total, count) in masked.items():
        assert total == pytest.approx(every[name][0], rel=1e-5)
        assert count == every[name][1]
    assert tasks[1].flops_per_row(batch) < tasks[0].flops_per_row(batch)


@pytest.mark.parametrize(
    ("layers", "expected"), [("every_kth", [0, 2]), ([1, 3], [1, 3])], ids=["every_kth", "given"]
)
def test_a_student_starts_from_layers_of_its_teacher(
    layers: Any, expected: list[int], tmp_path: Path
) -> None:
    found = _student_params({"initial_layers": layers}, encoder="bert")
    teacher = dict(named(_params(small_teacher())))
    assert {name for name, _ in named(found)} == set(teacher)
    for name, ours in named(found):
        theirs = teacher[name][expected] if "/layers/" in name else teacher[name]
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_the_layers_of_modernbert_without_a_norm_are_shifted(tmp_path: Path) -> None:
    run = write_teacher(
        tmp_path / "teacher", small_encoder("modernbert", num_hidden_layers=5, hidden_size=32)
    )
    settings = {"teacher": str(run), "initial_layers": [1, 2, 4]}
    student = {"num_hidden_layers": 3, "hidden_size": 32}
    found = _student_params(settings, encoder="modernbert", **student)
    theirs, ours = _params(run)["encoder"], found["encoder"]
    for stack, layers in (("layers", [1, 2, 4]), ("attention_norms", [1, 3])):
        jax.tree.map(
            lambda mine, other, layers=layers: np.testing.assert_array_equal(mine, other[layers]),
            ours[stack],
            theirs[stack],
        )


def _params(run_dir: Path) -> dict[str, Any]:
    return jax.device_get(load_params(open_run(run_dir), checkpoint="last").params)


def _student_params(settings: dict[str, Any], *, encoder: str, **changes: Any) -> Any:
    """Returns the initial parameters of a student. No parameter is drawn."""
    task = _student(settings, encoder=encoder, **changes)
    mesh = mesh_of((2, 2, 2))
    frozen = load_frozen(task, mesh)
    before = jax.device_get(frozen.params)
    abstract = trained_params(define_model(task.build), mesh)
    found = initial_params(task, frozen.params, abstract, draw_nothing)
    host = jax.device_get(found)
    # Deleting the student's arrays, as a train step does, leaves the teacher's.
    jax.tree.map(lambda leaf: leaf.delete(), found)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(frozen.params), before)
    return host


def draw_nothing(abstract: Params) -> Params:
    assert not abstract
    return {}


def _student(settings: dict[str, Any], *, encoder: str = "bert", **changes: Any) -> Distillation:
    values = {"teacher": str(small_teacher()), **settings}
    made = make_objective(
        DistillObjectiveSection.model_validate(values),
        architecture=small_encoder(encoder, **changes),
        execution=Execution(dtype="float32"),
        tokenizer=made_up_tokenizer(changes.get("vocab_size", 250)),
    )
    assert isinstance(made, Distillation)
    return made


def test_a_teacher_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with refuses("distill.sizes", place="objective.cosine_weight", ours=32, theirs=64):
        _student({}, hidden_size=32)
    with refuses("distill.vocab_size", place="objective.teacher", found=250, expected=260):
        _student({}, vocab_size=260)
    task, mesh = _student({}, hidden_size=64), mesh_of(ONE)
    other = write_teacher(
        tmp_path / "other", small_encoder("bert"), tokenizer=made_up_tokenizer(249)
    )
    with refuses("teacher.tokenizer", place="objective.teacher", found=249, expected=250):
        load_frozen(_student({"teacher": str(other)}), mesh)
    headless = HeadsSection(mlm=False, next_sentence=False)
    bare = write_teacher(tmp_path / "bare", small_encoder("bert"), heads=headless)
    with refuses("distill.no_mlm_head", place="objective.teacher", teacher=bare):
        _student({"teacher": str(bare)})

    frozen = load_frozen(task, mesh).params
    cases: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [
        ({"initial_layers": [0, 4]}, {}, "teacher.layers", {"student": 2, "last": 3}),
        ({"initial_layers": [0]}, {}, "teacher.layers", {"student": 2}),
        ({}, {"num_hidden_layers": 5}, "teacher.layers", {"student": 5, "teacher": 4}),
        ({}, {"intermediate_size": 64}, "teacher.other_shape", {"expected": [2, 64]}),
    ]
    for settings, changes, key, values in cases:
        student = _student(settings, **changes)
        abstract = trained_params(define_model(student.build), mesh)
        with refuses(key, place="objective.initial_layers", **values):
            initial_params(student, frozen, abstract, draw_nothing)
