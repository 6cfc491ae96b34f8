"""The reminder of what a normal loss is, and the warning of a run that is stuck."""

import math

from bert_jax.objectives.bert import PlateauWatch


def make_plateau() -> PlateauWatch:
    return PlateauWatch(unigram_entropy=6.0, vocab_size=1000, patience=100)


def test_the_expectation_names_the_first_loss_and_the_entropy() -> None:
    line = make_plateau().expectation
    assert f"{math.log(1000):.1f} at the start" in line
    assert "6.00 (unigram entropy" in line


def test_a_loss_is_placed_above_on_or_below_the_entropy() -> None:
    plateau = make_plateau()
    assert plateau.remark({"mlm_loss": 6.5}) == "above the unigram entropy"
    assert plateau.remark({"mlm_loss": 6.05}) == "on the unigram plateau"
    assert plateau.remark({"mlm_loss": 5.5}) == "0.50 below the unigram entropy"


def test_a_run_that_stays_on_the_plateau_is_warned_of_once() -> None:
    plateau = make_plateau()
    warnings = [plateau.warn(step=step, scores={"mlm_loss": 6.03}) for step in range(0, 300, 20)]
    told = [step for step, warning in zip(range(0, 300, 20), warnings, strict=True) if warning]
    assert told == [100]
    assert "6.03 has stayed at the unigram entropy 6.00" in str(warnings[told[0] // 20])


def test_a_run_that_leaves_the_plateau_or_has_not_reached_it_is_not() -> None:
    plateau = make_plateau()
    losses = [6.9, 6.5, 6.0, 6.0, 6.0, 6.0, 5.7, 6.0, 6.0, 6.0, 6.0, 5.6]
    assert not any(
        plateau.warn(step=200 + i, scores={"mlm_loss": loss}) for i, loss in enumerate(losses)
    )
