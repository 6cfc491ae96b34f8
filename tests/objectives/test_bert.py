"""The objectives: loss terms, required data, and the plateau warning."""

import functools
import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.data.dataset.provenance import PairingKind
from bert_jax.model.section import Execution
from bert_jax.objectives.masked_lm import MLM_EPSILON, MaskedLanguageModel
from bert_jax.objectives.metrics import PlateauWatch
from bert_jax.objectives.registry import check_pairing, make_objective, read_objective
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.model.parts import fresh_params, model_of
from tests.project import refuses
from tests.support import loss_of, small_architecture, small_batch

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(245))]


def objective(kind: str, **masking: Any) -> MaskedLanguageModel:
    made = make_objective(
        read_objective({"kind": kind, "masking": masking}, source="test"),
        architecture=small_architecture(
            num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        ),
        execution=Execution(dtype="float32"),
        tokenizer=WordPieceTokenizer(PIECES, lower_case=True),
    )
    assert isinstance(made, MaskedLanguageModel)
    return made


def loss_and_gradient(task: MaskedLanguageModel, batch: dict[str, np.ndarray]) -> Any:
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params: Any, batch: Any) -> Any:
        return loss_of(task, model_of(task, params), batch)

    (value, metrics), gradient = jax.jit(loss)(fresh_params(task), batch)
    sums = {name: (float(total), float(count)) for name, (total, count) in metrics.items()}
    return float(value), sums, gradient


def largest(tree: Any) -> float:
    return max(float(abs(leaf).max()) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("name", "pair"), [("bert", "nsp"), ("sop", "sop")])
def test_a_pair_task_adds_its_named_mean_loss(name: str, pair: str) -> None:
    task = objective(name)
    value, sums, gradient = loss_and_gradient(task, small_batch())
    assert set(sums) == {"mlm_loss", "mlm_accuracy", f"{pair}_loss", f"{pair}_accuracy"}
    (mlm, masked), (nll, rows) = sums["mlm_loss"], sums[f"{pair}_loss"]
    assert value == pytest.approx(mlm / (masked + MLM_EPSILON) + nll / rows, rel=1e-6)
    assert set(task.score(sums)) == {"loss", *sums}
    assert task.score(sums)["loss"] == pytest.approx(value, rel=1e-6)
    assert largest(gradient["next_sentence"]) > 0
    assert largest(gradient["pooler"]) > 0


def test_without_a_pair_task_its_loss_and_heads_are_absent() -> None:
    task = objective("roberta")
    batch = small_batch()
    read = {name: batch[name] for name in batch if "sentence" not in name and "cls" not in name}
    value, sums, gradient = loss_and_gradient(task, read)
    assert set(sums) == {"mlm_loss", "mlm_accuracy"}
    mlm, masked = sums["mlm_loss"]
    assert value == pytest.approx(mlm / (masked + MLM_EPSILON), rel=1e-6)
    assert task.score(sums) == {
        "loss": pytest.approx(value, rel=1e-6),
        "mlm_loss": pytest.approx(value, rel=1e-6),
        "mlm_accuracy": sums["mlm_accuracy"][0] / masked,
    }
    assert set(gradient) == {"encoder", "mlm"}
    assert largest(gradient["mlm"]) > 0
    # Without [CLS], the last layer computes one state less.
    spared = objective("bert").flops_per_row(batch) - task.flops_per_row(read)
    width, inner, length = 64, 128, 32
    layer = 4 * width * width + 4 * width * inner + 4 * length * width
    assert spared == 3 * (layer + 2 * (width * width + 2 * width))


@pytest.mark.parametrize("name", ["bert", "sop", "roberta"])
def test_evaluation_always_masks_15_percent(name: str) -> None:
    task = objective(name, rate=0.4, unit="span")
    training, evaluation = (
        task.features(seq_length=128, max_predictions=5, evaluation=evaluating)
        for evaluating in (False, True)
    )
    assert training.fingerprint()["masking.unit"] == "span"
    assert training.fingerprint()["masking.max_predictions"] == 5
    assert evaluation.fingerprint() == {
        "seq_length": 128,
        "packing": "none",
        "masking.max_predictions": 20,
        "masking.rate": 0.15,
        "masking.unit": "token",
        "masking.replace_with_mask": 0.8,
        "masking.replace_with_random": 0.1,
    }


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("bert", {"nsp"}), ("sop", {"sop"}), ("roberta", {"full_sentences", "doc_sentences"})],
)
def test_another_objectives_dataset_is_refused(name: str, kinds: set[str]) -> None:
    section = read_objective({"kind": name}, source="test")
    without_pairs = {"full_sentences", "doc_sentences"}
    everything: tuple[PairingKind, ...] = ("nsp", "sop", "full_sentences", "doc_sentences")
    for kind, evaluation in itertools.product(everything, (False, True)):
        allowed = kinds | without_pairs if evaluation else kinds
        check = functools.partial(
            check_pairing,
            section,
            kind,
            dataset="data/corpus",
            key="dataset",
            evaluation=evaluation,
        )
        if kind in allowed:
            check()
            continue
        values: dict[str, Any] = {"dataset": "data/corpus", "found": kind, "objective": name}
        with refuses("objective.pairing", place="dataset", **values) as caught:
            check()
        assert all(each in str(caught.value) for each in allowed)


def make_plateau() -> PlateauWatch:
    return PlateauWatch(unigram_entropy=6.0, vocab_size=1000, total_steps=400)


def test_the_expectation_is_first_loss_and_entropy() -> None:
    for trained in (False, True):
        line = make_plateau().expectation(trained=trained)
        assert (f"{math.log(1000):.1f} at the start" in line) == (not trained)
        assert "6.00 (unigram entropy" in line


def test_a_loss_is_placed_above_on_or_below_the_entropy() -> None:
    plateau = make_plateau()
    assert plateau.remark({"mlm_loss": 6.5}) == "above the unigram entropy"
    assert plateau.remark({"mlm_loss": 6.05}) == "on the unigram plateau"
    assert plateau.remark({"mlm_loss": 5.5}) == "0.50 below the unigram entropy"


def test_a_run_on_the_plateau_gets_one_warning() -> None:
    plateau = make_plateau()
    warnings = [plateau.warn(step=step, scores={"mlm_loss": 6.03}) for step in range(0, 300, 20)]
    told = [step for step, warning in zip(range(0, 300, 20), warnings, strict=True) if warning]
    assert told == [100]
    assert "6.03 has stayed at the unigram entropy 6.00" in str(warnings[told[0] // 20])


def test_a_run_off_the_plateau_gets_no_warning() -> None:
    plateau = make_plateau()
    losses = [6.9, 6.5, 6.0, 6.0, 6.0, 6.0, 5.7, 6.0, 6.0, 6.0, 6.0, 5.6]
    assert not any(
        plateau.warn(step=200 + i, scores={"mlm_loss": loss}) for i, loss in enumerate(losses)
    )
