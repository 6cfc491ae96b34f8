"""Scores of parameters on one split."""

from collections.abc import Callable
from typing import cast

from jax.sharding import Mesh

from bert_jax.parallel.stop_signal import STOP
from bert_jax.task import Batch, Params, Task
from bert_jax.train import metrics as sums_of
from bert_jax.train.compiled import COMPILER, Compile, compile_evaluation
from bert_jax.train.prefetch import prefetch_to_device
from bert_jax.train.spec import HostBatches
from bert_jax.train.state import ModelDefinition


def make_evaluation(
    task: Task,
    model: ModelDefinition,
    open_batches: Callable[[], HostBatches],
    mesh: Mesh,
    *,
    shares: int,
    compile_step: Compile = COMPILER,
) -> Callable[[Params], dict[str, float]]:
    """Returns a function from parameters to scores on a split; it compiles at the first call.

    Call it under `jax.set_mesh`.

    Args:
        task: gives the metrics.
        model: structure of the task's model.
        open_batches: opens one pass over the split, every example once.
        mesh: of all processes.
        shares: number of different shares of a batch that processes hold.
        compile_step: makes a program of the step.
    """
    step = compile_evaluation(task, model, mesh, compile_step=compile_step)

    def evaluate(params: Params) -> dict[str, float]:
        totals: dict[str, tuple[float, float]] = {}
        with open_batches() as rows:
            for fed in prefetch_to_device(rows, mesh, shares=shares):
                STOP.between_batches()
                batch = cast(Batch, fed.batch)  # never in parts: there is one program
                totals = sums_of.add(totals, sums_of.to_host(step(params, batch)))
        return task.score(totals)

    return evaluate
