"""Compares runs whose devices sum gradients in float32 and in bfloat16.

    python -m benchmarks.gradient_sums CONFIG --devices 16 64 --seeds 10 --into runs/sums

CONFIG is a pretraining configuration with evaluation. Each batch is cut into a share per device.
The shares are added one after the other, and each sum is rounded to the dtype. A ring of devices
does the same, so one CPU simulates any number of them. (Simulated devices would not: XLA's CPU
compiler sums bfloat16 in float32.) Both dtypes have the same rows, masks and dropout.

The metrics, by number of devices:

- the loss of the last evaluation for each dtype, and their difference with a paired t-test;
- the error of the sum in each dtype, relative to the float64 sum of the same shares, over all
  parameters of a model of 2 layers of width 128 at its start. A device has one row.

Repeat the command to resume: finished runs are kept.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy import stats

from benchmarks.finished_runs import LOSS, RunFolder
from benchmarks.report import report
from benchmarks.significance import Spread
from benchmarks.train_step import architecture, make_batch, make_task
from bert_jax.config import RunConfig, load_config
from bert_jax.model.section import Execution
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.task import Rngs
from bert_jax.train import step as train_step
from bert_jax.train.metrics_writer import VALIDATION, read_metrics
from bert_jax.train.state import abstract_params, define_model, draw_params

DTYPES = ("float32", "bfloat16")

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
        losses = {
            dtype: [trained(folder, config, dtype, devices, seed) for seed in range(asked.seeds)]
            for dtype in DTYPES
        }
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
        for dtype, error in sum_errors(devices).items():
            report(f"gradient_sums.error_{dtype}", error, "share of the norm", devices=devices)


def trained(folder: RunFolder, config: RunConfig, dtype: str, devices: int, seed: int) -> float:
    """Returns the loss of a run's last evaluation."""
    assert config.train is not None
    name = f"{dtype}-{devices}-seed{seed}"
    phases = [
        phase.model_copy(update={"accumulation": devices, "batch_ramp": ()})
        for phase in config.train.phases
    ]
    train = config.train.model_copy(update={"phases": tuple(phases)})
    run_dir = folder.run_dir(name)
    run = config.model_copy(update={"train": train, "seed": seed, "run_dir": str(run_dir)})
    # A microbatch is the share of a device.
    train_step.accumulate = rounded if dtype == "bfloat16" else _accumulate
    train_step.make_train_step.cache_clear()  # pyright: ignore[reportFunctionMemberAccess]
    folder.pretrain(name, run)
    (*_, last) = read_metrics(run_dir, kind=VALIDATION)
    return last[LOSS]


def rounded(grad: Any, *inputs: Any) -> Any:
    """Is `accumulate` with sums of gradients that are rounded to bfloat16."""

    def half(*arguments: Any) -> Any:
        found, gradients = grad(*arguments)
        return found, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), gradients)

    loss, metrics, gradients = _accumulate(half, *inputs)
    return loss, metrics, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)


def sum_errors(devices: int) -> dict[str, float]:
    """Returns the relative error of the sum of one row's gradient per device, by dtype."""
    execution = Execution(dtype="float32")
    task = make_task(architecture("bert", 2, 128), execution)
    model = define_model(task.build)
    batch: dict[str, Any] = dict(make_batch(devices, length=64, predictions=10))
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = draw_params(model, abstract_params(model, mesh), seed=0)
        divisors = task.divisors(batch)
        keys = Rngs(jax.random.key(0), None)

        def loss(params: Any, row: Any) -> jax.Array:
            merged = nnx.merge(model.graphdef, params)
            return task.loss(merged, row, divisors=divisors, rngs=keys, frozen={})[0]

        gradient = jax.jit(jax.grad(loss))
        shares = (
            gradient(params, {name: rows[[at]] for name, rows in batch.items()})
            for at in range(devices)
        )
        sums: dict[str, Any] = {}
        for share in shares:
            vector = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(share)])
            for dtype in (*DTYPES, "float64"):
                mine = vector.astype(dtype)
                sums[dtype] = mine if dtype not in sums else (sums[dtype] + mine).astype(dtype)
    exact = sums.pop("float64")
    norm = np.linalg.norm(exact)
    return {dtype: float(np.linalg.norm(of - exact) / norm) for dtype, of in sums.items()}


if __name__ == "__main__":
    main()
