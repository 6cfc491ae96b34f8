"""Times a run's health checks: withheld updates, limits, checksums of replicas.

    python -m benchmarks.health [--size L4H256] [--rounds N]

The metrics are:

- the train step of pretraining, and the same step without checks;
- the host's time per step for the limits and for the watchdog;
- the time to compare all replicas, divided by the default interval of 1,000 steps.

The checksums run on `--devices` simulated devices, which share this machine's cores.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import optax
from etils import epath

from benchmarks.report import interleaved, median_ratio, report
from benchmarks.train_step import PREDICTIONS, RATE, architecture, layers_and_width, make_batch
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.objectives.registry import DEFAULT, make_objective
from bert_jax.optim.optimizer import make_optimizer, schedule_count
from bert_jax.optim.schedule import Schedule, learning_rate, pretraining_schedule
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.train.bad_steps import BadStepGuard, StepHistory
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.hooks import find_deviations
from bert_jax.train.sections import BadStepsSection, TrainSection, WatchdogSection
from bert_jax.train.state import TrainState, abstract_state, define_model, draw_params, initialise
from bert_jax.train.step import StepFigures, StepLimits, StepSpec, make_gradients
from bert_jax.train.watchdog import Watchdog

ROWS = 16


def main() -> None:
    """Measures and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--size", type=layers_and_width, default=(4, 256))
    parser.add_argument("--steps", type=int, default=4, help="steps per timed round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--devices", type=int, default=2)
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    measure(architecture("bert", *arguments.size), arguments.steps, arguments.rounds)


def measure(size: EncoderArchitecture, steps: int, rounds: int) -> None:
    """Times the step with and without checks, and the comparison of replicas."""
    task = make_objective(
        DEFAULT,
        architecture=size,
        execution=Execution(dtype="float32"),
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
    )
    model = define_model(task.build)
    schedule = pretraining_schedule([ScheduleSegment(1_000_000, RATE, 10_000)])
    optimizer = make_optimizer(OptimizerSection(), model.axes)
    mesh = make_mesh(MeshSection())
    spec = StepSpec(task=task, model=model, optimizer=optimizer)
    with jax.set_mesh(mesh):
        batch = jax.device_put(make_batch(ROWS), batch_sharding(mesh))
        abstract = abstract_state(model, optimizer, mesh)
        watched = lower_train_step(spec, abstract, batch, schedule, {}, accumulation=1).compile()
        layout = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        jitted = jax.jit(unwatched(spec), donate_argnums=0, out_shardings=(layout, layout.step))
        bare = jitted.lower(abstract, batch, StepLimits(), schedule, {}).compile()

        def fresh() -> TrainState:
            params = draw_params(model, abstract.params, seed=0)
            return initialise(params, optimizer, abstract, seed=0)

        runs = {
            "watched": steps_of(watched, fresh(), (batch, StepLimits(), schedule, {}), steps),
            "bare": steps_of(bare, fresh(), (batch, StepLimits(), schedule, {}), steps),
        }
        seconds = interleaved(runs, rounds=rounds)
        state = fresh()
        compared = interleaved({"checksum": lambda: find_deviations(state, mesh)}, rounds=rounds)
    facts: dict[str, Any] = {
        "size": f"L{size.num_hidden_layers}H{size.hidden_size}",
        "rows": ROWS,
        "predictions": PREDICTIONS,
        "devices": mesh.size,
        "packages": ["jax"],
    }
    step = statistics.median(seconds["bare"]) / steps
    ratio = median_ratio(seconds["watched"], seconds["bare"])
    report("health.step_ratio", ratio, "x", peer="the step without limits", **facts)
    report("health.judging", judging() / step, "of a step", **facts)
    report("health.watchdog", watching() / step, "of a step", **facts)
    checksum = statistics.median(compared["checksum"])
    every = TrainSection.model_fields["checksum_every"].default
    share = checksum / every / step
    report("health.checksum", share, "of a step", seconds=checksum, every=every, **facts)


def unwatched(spec: StepSpec) -> Any:
    """Returns the train step without limits, per-layer norms and withheld updates."""
    gradients = make_gradients(spec.task, spec.model, accumulation=1)

    def step(
        state: TrainState, batch: Any, limits: StepLimits, schedule: Schedule, frozen: Any
    ) -> tuple[TrainState, StepFigures]:
        loss, metrics, grads = gradients(state, batch, frozen)
        rate = learning_rate(schedule, schedule_count(state.opt_state))
        updates, opt_state = spec.optimizer.update(
            grads, state.opt_state, state.params, learning_rate=rate
        )
        params: Any = optax.apply_updates(state.params, updates)
        changed = TrainState(state.step + 1, state.rng, params, opt_state, state.healthy)
        return changed, StepFigures(metrics | {"loss": (loss, optax.tree.norm(grads))}, {})

    return step


def steps_of(
    step: Any, state: TrainState, inputs: tuple[Any, ...], steps: int
) -> Callable[[], None]:
    """Returns a function that runs a given number of steps."""
    held = [state]

    def run() -> None:
        for _ in range(steps):
            held[0], _ = step(held[0], *inputs)
        jax.block_until_ready(held[0])

    return run


def judging(steps: int = 2000) -> float:
    """Returns the host's seconds per step for checking the limits and recording the step."""
    guard, history = BadStepGuard(BadStepsSection()), StepHistory()
    metrics = {"loss": (2.0, 1.0), "gradient_norm": (1.0, 1.0), "healthy": (1.0, 1.0)}
    started = time.perf_counter()
    for step in range(1, steps + 1):
        guard.judge(history, step, metrics, guard.limits(history, step))
    return (time.perf_counter() - started) / steps


def watching(steps: int = 20_000) -> float:
    """Returns the seconds per step of the time accounting and the watchdog."""
    nowhere = epath.Path("/nowhere")
    watch = Stopwatch(nowhere, started=time.time())
    with watch.on("train"), Watchdog(WatchdogSection(), watch, nowhere) as watchdog:
        started = time.perf_counter()
        for _ in range(steps):
            with watch.on("input"):
                pass
            watchdog.step_done()
        return (time.perf_counter() - started) / steps


if __name__ == "__main__":
    main()
