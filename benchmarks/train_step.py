"""Times a train step in sequences per second: ours and Hugging Face's PyTorch model.

    python -m benchmarks.train_step [--encoder modernbert] [--size L4H256 …] [--steps N]

BERT trains MLM and NSP with dropout 0.1, DeBERTaV3 trains MLM with dropout 0.1, and ModernBERT
trains MLM without dropout. All models use float32, rows of 128 pieces with 20 predicted, a
vocabulary of 30,522, and AdamW with the gradient norm clipped at 1. Ours is the compiled step of
pretraining on one device. Each model runs in its own process on all cores, alternating with the
others, with batches of the same shape.

PyTorch is measured if it is installed, with SDPA attention if the class has it. ModernBERT is also
measured with `sparse_prediction`, which computes the logits of masked pieces only, as ours does.
Transformers 5 has no Flax BERT, so ``--flax-python PATH`` is a Python with transformers 4
(``pip install 'transformers==4.56.*' flax optax``). On Linux all processes use malloc's large
pages, as under `make`. An empty GLIBC_TUNABLES switches them off.
"""

import argparse
import contextlib
import functools
import importlib.util
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import glibc
from benchmarks.report import interleaved, median_ratio, report
from bert_jax.encoders.registry import SECTIONS
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.objectives.registry import make_objective, read_objective
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import pretraining_schedule
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.task import Objective
from bert_jax.train.compiled import lower_train_step
from bert_jax.train.state import abstract_state, define_model, draw_params, initialise
from bert_jax.train.step import StepLimits, StepSpec

ROWS, LENGTH, PREDICTIONS, VOCAB = 16, 128, 20, 30_522
RATE = 1e-4
FLAX_PEER = Path(__file__).with_name("hf_flax_step.py")
TORCH_PEER = Path(__file__).with_name("hf_torch_step.py")

# Untimed steps before each round. The first steps after another model's round are up to 50% slower.
UNTIMED = 3

# The objective of each encoder, and the ratio of the FFN's width to the hidden size.
OBJECTIVE = {"bert": "bert", "deberta": "roberta", "modernbert": "roberta"}
INNER = {"bert": 4.0, "deberta": 4.0, "modernbert": 1.5}

Run = Callable[[int], object]  # runs a given number of steps


def main() -> None:
    """Measures every requested size and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--encoder", choices=tuple(OBJECTIVE), default="bert")
    parser.add_argument("--size", nargs="+", type=layers_and_width, default=[(4, 256)])
    parser.add_argument("--steps", type=int, default=8, help="steps per timed round")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds per model")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--unroll", type=int, default=None, help="`model.unroll` of ours")
    parser.add_argument("--flax-python", help="Python with transformers 4 and flax")
    arguments = parser.parse_args()
    glibc.with_large_pages("benchmarks.train_step")
    for layers, hidden in arguments.size:
        measure(
            architecture(arguments.encoder, layers, hidden),
            rows=arguments.rows,
            unroll=arguments.unroll,
            steps=arguments.steps,
            rounds=arguments.rounds,
            flax_python=arguments.flax_python,
        )


def layers_and_width(name: str) -> tuple[int, int]:
    """Returns the numbers in ``L4H256``."""
    found = re.fullmatch(r"L(\d+)H(\d+)", name)
    if found is None or int(found[2]) % 64 or not int(found[1]) or not int(found[2]):
        raise argparse.ArgumentTypeError(
            f'found "{name}", allowed: a size such as L4H256, with H a multiple of 64'
        )
    return int(found[1]), int(found[2])


def architecture(encoder: str, layers: int, hidden: int) -> EncoderArchitecture:
    """Returns an architecture with heads of 64 columns."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": int(INNER[encoder] * hidden),
    }
    return SECTIONS[encoder].architecture_type.model_validate(sizes)


def measure(
    size: EncoderArchitecture,
    *,
    rows: int,
    unroll: int | None,
    steps: int,
    rounds: int,
    flax_python: str | None,
) -> None:
    """Times our step and the peers' steps alternately, and reports rates and ratios."""
    batch = make_batch(rows)
    packages = ["jax", "flax"]
    with contextlib.ExitStack() as stack:
        execution = Execution(dtype="float32", unroll=unroll)
        runs: dict[str, Run] = {"bert_jax": our_steps(size, batch, execution)}
        if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
            sparse = [f"{size.kind}_sparse"] if size.kind == "modernbert" else []
            kinds = [size.kind, *sparse]
            for kind in kinds:
                torch = peer_steps(sys.executable, TORCH_PEER, size, rows, kind)
                runs["hf_torch" + kind.removeprefix(size.kind)] = stack.enter_context(torch)
            packages += ["torch", "transformers"]
        if flax_python is not None:
            flax = peer_steps(flax_python, FLAX_PEER, size, rows)
            runs["hf_flax"] = stack.enter_context(flax)
        seconds = interleaved(
            {name: functools.partial(run, steps) for name, run in runs.items()},
            rounds=rounds,
            before={name: functools.partial(run, UNTIMED) for name, run in runs.items()},
        )
    facts = {
        "encoder": size.kind,
        "size": f"L{size.num_hidden_layers}H{size.hidden_size}",
        "rows": rows,
        "seq_length": LENGTH,
        "dtype": "float32",
        "steps_per_round": steps,
        "rounds": rounds,
        "unroll": unroll,
        "malloc": os.environ.get("GLIBC_TUNABLES", ""),
    }
    for name, taken in seconds.items():
        rate = rows * steps / statistics.median(taken)
        peer = None if name == "bert_jax" else name
        report("train_step.rate", rate, "sequences/s", peer=peer, packages=packages, **facts)
    for name in runs.keys() - {"bert_jax"}:
        ratio = median_ratio(seconds[name], seconds["bert_jax"])
        report("train_step.ratio", ratio, "x", peer=name, packages=packages, **facts)


def make_batch(
    rows: int, length: int = LENGTH, predictions: int = PREDICTIONS
) -> dict[str, np.ndarray]:
    """Returns full rows of random pieces, each with distinct predicted positions."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCAB, (rows, length), dtype=np.int32)
    positions = np.stack([rng.permutation(length)[:predictions] for _ in range(rows)])
    return {
        "input_ids": ids,
        "token_type_ids": np.tile((np.arange(length) >= length // 2).astype(np.int32), (rows, 1)),
        "segment_ids": np.ones((rows, length), np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": rng.integers(5, VOCAB, positions.shape, dtype=np.int32),
        "masked_lm_weights": np.ones(positions.shape, np.float32),
        "cls_positions": np.zeros((rows, 1), np.int32),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1), dtype=np.int32),
        "next_sentence_weights": np.ones((rows, 1), np.float32),
    }


def make_task(size: EncoderArchitecture, execution: Execution) -> Objective:
    """Returns the pretraining objective of an encoder."""
    return make_objective(
        read_objective({"kind": OBJECTIVE[size.kind]}, source="benchmark"),
        architecture=size,
        execution=execution,
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
    )


def our_steps(
    size: EncoderArchitecture, batch: dict[str, np.ndarray], execution: Execution
) -> Callable[[int], float]:
    """Returns a function that runs steps of pretraining's compiled program.

    The function returns the loss of the last step.
    """
    task = make_task(size, execution)
    mesh = make_mesh(MeshSection(), jax.devices()[:1])
    model = define_model(task.build)
    schedule = pretraining_schedule([ScheduleSegment(1_000_000, RATE, 10_000)])
    optimizer = make_optimizer(OptimizerSection(), model.axes)
    with jax.set_mesh(mesh):
        abstract = abstract_state(model, optimizer, mesh)
        params = draw_params(model, abstract.params, seed=0)
        state = initialise(params, optimizer, abstract, seed=0)
        placed = jax.device_put(batch, batch_sharding(mesh))
        spec = StepSpec(task=task, model=model, optimizer=optimizer)
        step = lower_train_step(spec, state, placed, schedule, {}, accumulation=1).compile()

    def run(steps: int) -> float:
        nonlocal state
        total = count = jnp.ones(())
        for _ in range(steps):
            state, figures = step(state, placed, StepLimits(), schedule, {})
            total, count = figures.metrics["loss"]
        jax.block_until_ready(state)
        return float(total / count)

    return run


@contextlib.contextmanager
def peer_steps(
    python: str, peer: Path, size: EncoderArchitecture, rows: int, *options: str
) -> Iterator[Run]:
    """Starts a peer's process under its Python. Yields a function that runs its steps.

    `options` are further arguments of the process. The process sleeps between its rounds, so the
    other models can use all cores.
    """
    sizes = [size.num_hidden_layers, size.hidden_size, rows, LENGTH, PREDICTIONS, VOCAB]
    command = [python, str(peer), *map(str, sizes), *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def run(steps: int) -> None:
            print(steps, file=requests, flush=True)
            if answers.readline().strip() != "done":
                raise SystemExit(f"{peer.name}: stopped, see above")

        yield run
        requests.close()


if __name__ == "__main__":
    main()
