"""Compares runs whose devices sum gradients in float32 and in bfloat16.

    python -m benchmarks.gradient_sums CONFIG --devices 16 64 --seeds 10 --into runs/sums

CONFIG is a pretraining configuration with evaluation. Each batch is cut into a share per device.
The shares are added one after the other, and each sum is rounded to the dtype. A ring of devices
does the same, so one CPU simulates any number of them. (Simulated devices would not: XLA's CPU
compiler sums bfloat16 in float32.) Both dtypes have the same rows, masks and dropout.

The metrics, by number of devices:

- the loss of the last evaluation for each dtype, and their difference with a paired t-test;
- the error of the bfloat16 sum over all parameters, relative to the float32 sum of the same shares.

Repeat the command to resume: finished runs are kept.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from scipy import stats

from benchmarks.finished_runs import LOSS, RunFolder
from benchmarks.report import report
from benchmarks.significance import Spread
from bert_jax.config import RunConfig, load_config
from bert_jax.train import step as train_step
from bert_jax.train.metrics_writer import VALIDATION, read_metrics

DTYPES = ("float32", "bfloat16")
ERROR = "sum_error"

_accumulate = train_step.accumulate


def main() -> None:
    """Trains, and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("config")
    parser.add_argument("--devices", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--into", type=Path, required=True)
    asked = parser.parse_args()
    folder, config = RunFolder(asked.into), load_config(asked.config)
    for devices in asked.devices:
        found: dict[str, list[Any]] = {
            dtype: [trained(folder, config, dtype, devices, seed) for seed in range(asked.seeds)]
            for dtype in DTYPES
        }
        losses = {dtype: [loss for loss, _ in runs] for dtype, runs in found.items()}
        shared = {"devices": devices, "seeds": asked.seeds}
        for dtype, each in losses.items():
            mean, deviation = Spread.of(each)
            report(f"gradient_sums.loss_{dtype}", mean, "nats", **shared, deviation=deviation)
        pairs = zip(losses["bfloat16"], losses["float32"], strict=True)
        mean, deviation = Spread.of([one - other for one, other in pairs])
        p_value = stats.ttest_rel(losses["bfloat16"], losses["float32"]).pvalue
        report(
            *("gradient_sums.difference", mean, "nats"),
            **shared,
            deviation=deviation,
            p_value=float(p_value),  # pyright: ignore[reportArgumentType]
        )
        errors = [error for _, run in found["bfloat16"] for error in run]
        middle = statistics.median(errors)
        report("gradient_sums.bfloat16_error", middle, "share", **shared, largest=max(errors))


def trained(
    folder: RunFolder, config: RunConfig, dtype: str, devices: int, seed: int
) -> tuple[float, list[float]]:
    """Returns a run's last loss, and its logged errors of the sum."""
    assert config.train is not None
    name = f"{dtype}-{devices}-seed{seed}"
    phases = [
        phase.model_copy(update={"accumulation": devices, "batch_ramp": ()})
        for phase in config.train.phases
    ]
    train = config.train.model_copy(update={"phases": tuple(phases)})
    run_dir = folder.run_dir(name)
    run = config.model_copy(update={"train": train, "seed": seed, "run_dir": str(run_dir)})
    # The accumulated shares are those of devices.
    train_step.accumulate = rounded if dtype == "bfloat16" else _accumulate
    train_step.make_train_step.cache_clear()  # pyright: ignore[reportFunctionMemberAccess]
    folder.pretrain(name, run)
    (*_, last) = read_metrics(run_dir, kind=VALIDATION)
    return last[LOSS], [line[ERROR] for line in read_metrics(run_dir) if ERROR in line]


def rounded(grad: Any, params: Any, batch: Any, *keys_and_parts: Any) -> Any:
    """Is `accumulate` with a second sum of the gradients, which is rounded to bfloat16."""

    def twice(*arguments: Any) -> Any:
        found, gradients = grad(*arguments)
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), gradients)
        return found, (gradients, half)

    loss, metrics, (exact, half) = _accumulate(twice, params, batch, *keys_and_parts)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), half)
    off = jax.tree.map(jnp.subtract, exact, half)
    square = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(off))
    norm = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(exact))
    return loss, metrics | {ERROR: (jnp.sqrt(square / norm), jnp.ones(()))}, half


if __name__ == "__main__":
    main()
