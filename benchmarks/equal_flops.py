"""FLOPs of pretraining configurations, and configurations with equal FLOPs."""

import math
from typing import Any, Final

from bert_jax.config import RunConfig, parse_config
from bert_jax.errors import UserError
from bert_jax.objectives.registry import make_objective
from bert_jax.section import need
from bert_jax.text import load_tokenizer

SOURCE: Final = "recipe"  # of values in messages


def total_flops(config: RunConfig) -> float:
    """Returns the model FLOPs of a whole pretraining run, forward and backward.

    Sum over all steps of rows x `Objective.flops_per_row`: the products of encoder and heads,
    padding and unused prediction slots included, as in the reported MFU. It excludes lookups,
    softmax, norms, the optimizer, evaluation and data preparation.
    """
    return flops_until(config, need(config.train, "train", "pretrain").total_steps)


def flops_until(config: RunConfig, step: int) -> float:
    """Returns the model FLOPs of the first `step` steps of a run, see `total_flops`."""
    return _times(rows_until(config, step), all_flops_per_row(config))


def rows_until(config: RunConfig, step: int) -> list[int]:
    """Returns the rows of each phase in the first `step` steps of a run."""
    found: list[int] = []
    for phase in need(config.train, "train", "pretrain").phases:
        done, rows = min(step, phase.steps), 0
        stages = [(stage.steps, stage.batch_size) for stage in phase.batch_ramp]
        for steps, size in (*stages, (phase.steps - phase.ramp_steps, phase.batch_size)):
            rows += min(done, steps) * size
            done -= min(done, steps)
        found.append(rows)
        step -= min(step, phase.steps)
    return found


def all_flops_per_row(config: RunConfig) -> list[float]:
    """Returns `flops_per_row` of each phase."""
    phases = need(config.train, "train", "pretrain").phases
    return [flops_per_row(config, at) for at in range(len(phases))]


def flops_per_row(config: RunConfig, phase: int) -> float:
    """Returns the model FLOPs of a row of a phase, forward and backward."""
    model, train = need(config.model, "model", "pretrain"), need(config.train, "train", "pretrain")
    tokenizer = load_tokenizer(need(config.tokenizer, "tokenizer", "pretrain"))
    section = train.phases[phase]
    architecture = model.resolve(vocab_size=tokenizer.vocab_size, padding_id=tokenizer.special.pad)
    changes = section.architecture_changes(architecture, key=f"train.phases.{phase}")
    objective = make_objective(
        section.objective or config.objective,
        architecture=architecture.with_changes(changes),
        execution=model.execution,
        tokenizer=tokenizer,
    )
    rows = objective.features(
        seq_length=section.seq_length,
        max_predictions=section.max_predictions,
        max_examples=section.max_examples,
        evaluation=False,
    )
    return objective.flops_per_row(rows.batch([], []))


def with_flops(values: dict[str, Any], flops: float) -> dict[str, Any]:
    """Returns a configuration whose run has nearly `flops` model FLOPs, never more.

    All numbers of steps change by one factor: phases, batch ramps, warm-ups, and the intervals of
    evaluations and checkpoints. `values` are the plain values of a configuration. Raises UserError
    if not even one step per phase fits.
    """
    per_row = all_flops_per_row(parse_config(values, source=SOURCE))

    def of(factor: float) -> float:
        config = parse_config(scaled(values, factor), source=SOURCE)
        return _times(
            rows_until(config, need(config.train, "train", "pretrain").total_steps), per_row
        )

    low, high = 0.0, 1.0
    while of(high) <= flops:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) <= flops else (low, middle)
    if (found := of(low)) > flops:
        raise UserError(
            "flops.too_few",
            f"found {flops:.3g} FLOPs, allowed: at least {found:.3g}, one step of each phase",
            place="budget",
        )
    return scaled(values, low)


def _times(rows: list[int], per_row: list[float]) -> float:
    return math.fsum(count * flops for count, flops in zip(rows, per_row, strict=True))


def scaled(values: dict[str, Any], factor: float) -> dict[str, Any]:
    """Returns a configuration whose numbers of steps are multiplied by `factor`, at least 1 each.

    A phase of 100 steps times 0.5 → a phase of 50 steps.
    """

    def times(section: dict[str, Any], *names: str, least: int = 1) -> dict[str, Any]:
        changed = {
            name: max(least, int(section[name] * factor))
            for name in names
            if section.get(name) is not None
        }
        return section | changed

    train = dict(values["train"])
    phases = []
    for phase in train["phases"]:
        made = times(times(phase, "steps"), "warmup_steps", least=0)
        if ramp := phase.get("batch_ramp"):
            made["batch_ramp"] = [times(stage, "steps") for stage in ramp]
        phases.append(made)
    train["phases"] = phases
    for name in ("evaluation", "checkpoint"):
        if train.get(name) is not None:
            train[name] = times(train[name], "every")
    optimizer = times(values.get("optimizer") or {}, "warmup_steps", least=0)
    return values | {"train": train, "optimizer": optimizer}
