"""Times train steps on one GPU: plain attention, cuDNN's, and Hugging Face's PyTorch model.

    python -m benchmarks.gpu_step [--case bert-512 …] [--attention xla cudnn torch]

The models are BERT-base (MLM and NSP) and ModernBERT-base (MLM) in bfloat16, with a vocabulary of
30,522, AdamW, and the gradient norm clipped at 1. Rows are full and random. PyTorch runs under
bfloat16 autocast with SDPA attention and fused AdamW, if torch and transformers are installed. Its
ModernBERT computes the logits of masked pieces only, as ours do.

Each measurement has its own process. If a step does not fit into the GPU's memory, the rows are
halved. FLOPs for the MFU are our count in every line. `gpu_step.loss` is the loss of the first
step. `gpu_step.loss_difference` and `gpu_step.gradient_difference` compare plain attention and
cuDNN's with float32, for packed rows and the same parameters. The script takes ten minutes.
"""

import argparse
import functools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from benchmarks.report import report
from benchmarks.train_step import architecture, make_batch, make_task, our_steps
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.accelerators import peak_flops
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.train.state import abstract_state, define_model, draw_params, initialise
from bert_jax.train.step import make_gradients

UNTIMED, ROUNDS = 3, 3
WIDTH: Final = 768
LAYERS: Final = {"bert": 12, "modernbert": 22}
COMPARED_ROWS, COMPARED_LAYERS = 4, 4


class Case(NamedTuple):
    """A model and the shape of its batch."""

    encoder: str
    rows: int
    length: int
    predictions: int
    dropout: float = 0.0

    def architecture(self, layers: int | None) -> EncoderArchitecture:
        """Returns the base size, with another number of layers if it is given."""
        size = architecture(self.encoder, layers or LAYERS[self.encoder], WIDTH)
        return size.with_dropout(self.dropout)


CASES: Final = {
    "bert-512": Case("bert", rows=256, length=512, predictions=77),
    "modernbert-1024": Case("modernbert", rows=64, length=1024, predictions=307),
    "bert-128": Case("bert", rows=256, length=128, predictions=20),
    "bert-512-dropout": Case("bert", rows=256, length=512, predictions=77, dropout=0.1),
    "bert-128-dropout": Case("bert", rows=256, length=128, predictions=20, dropout=0.1),
}
COMPARED: Final = ("bert-512", "modernbert-1024")


def main() -> None:
    """Prints one JSON line per measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    programs = ("xla", "cudnn", "torch")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--attention", nargs="+", choices=programs, default=list(programs))
    parser.add_argument("--steps", type=int, default=10, help="steps per timed round")
    parser.add_argument("--layers", type=int, help="default: the layers of the base size")
    parser.add_argument("--rows", type=int, help="default: 256, and 64 for ModernBERT")
    parser.add_argument("--unroll", type=int, help="`model.execution.unroll` of ours")
    parser.add_argument("--seconds", type=float, default=150.0, help="limit of one measurement")
    parser.add_argument("--alone", choices=("time", "compare"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone is not None:
        (name,), (program,) = asked.case, asked.attention
        alone = measure if asked.alone == "time" else compare
        alone(name, program, asked)
        return
    for name in asked.case:
        for program in asked.attention:
            if program != "cudnn" or not CASES[name].dropout:  # cuDNN's attention has no dropout
                start("time", name, program, asked)
    for name in asked.case:
        if name in COMPARED and "cudnn" in asked.attention:
            start("compare", name, "cudnn", asked)


def start(alone: str, name: str, program: str, asked: argparse.Namespace) -> None:
    """Runs one measurement in a process, with fewer rows if it runs out of memory."""
    rows = asked.rows or CASES[name].rows
    environment = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
    if program == "torch":
        environment["JAX_PLATFORMS"] = "cpu"  # JAX counts FLOPs only
    while rows:
        options = {"alone": alone, "case": name, "attention": program, "rows": rows}
        options |= {name: getattr(asked, name) for name in ("steps", "layers", "unroll")}
        command = [sys.executable, "-m", "benchmarks.gpu_step"]
        for option, value in options.items():
            command += [] if value is None else [f"--{option}", str(value)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment,
                timeout=asked.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{name}, {program}: more than {asked.seconds} s", file=sys.stderr)
            return
        print(done.stdout, end="", flush=True)
        if done.returncode == 0:
            return
        if "RESOURCE_EXHAUSTED" not in done.stderr and "OutOfMemory" not in done.stderr:
            print(f"{name}, {program}: {done.stderr[-2000:]}", file=sys.stderr)
            return
        rows //= 2


def measure(name: str, program: str, asked: argparse.Namespace) -> None:
    """Times one program, and reports time, memory, loss and MFU."""
    case = CASES[name]
    size, batch = case.architecture(asked.layers), _batch(case, asked.rows)
    if program == "torch":
        run, peak, device = _torch_steps(case, size, asked.rows)
    else:
        execution = Execution.model_validate({"attention": program, "unroll": asked.unroll})
        run, peak, device = _our_steps(size, batch, execution)
    loss = run(1)
    run(UNTIMED)
    taken = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run(asked.steps)
        taken.append((time.perf_counter() - begin) / asked.steps)
    seconds = statistics.median(taken)
    flops = make_task(size, Execution()).flops_per_row(batch) * asked.rows
    most = peak_flops(SimpleNamespace(device_kind=device))
    facts = {
        "case": name,
        "attention": "sdpa" if program == "torch" else program,
        "peer": "hf_torch" if program == "torch" else None,
        "device": device,
        "rows": asked.rows,
        "length": case.length,
        "dropout": case.dropout,
        "layers": size.num_hidden_layers,
        "unroll": asked.unroll,
        "packages": ["torch", "transformers"] if program == "torch" else ["jax", "flax"],
    }
    report("gpu_step.time", 1e3 * seconds, "ms", **facts)
    report("gpu_step.rate", asked.rows * case.length / seconds, "tokens/s", **facts)
    report("gpu_step.memory", peak() / 2**30, "GiB", **facts)
    report("gpu_step.loss", loss, "nats", **facts)
    if most is not None:
        report("gpu_step.mfu", 100 * flops / seconds / most, "%", **facts)


def _batch(case: Case, rows: int) -> dict[str, np.ndarray]:
    return make_batch(rows, case.length, case.predictions)


Run = tuple[Callable[[int], float], Callable[[], int], str]
"""A function that runs steps and returns the last loss, peak bytes of memory, and the GPU."""


def _our_steps(
    size: EncoderArchitecture, batch: dict[str, np.ndarray], execution: Execution
) -> Run:
    (device,) = jax.local_devices()[:1]
    run = our_steps(size, batch, execution)
    peak = "peak_bytes_in_use"
    return run, lambda: (device.memory_stats() or {}).get(peak, 0), device.device_kind


def _torch_steps(case: Case, size: EncoderArchitecture, rows: int) -> Run:
    import torch

    from benchmarks import hf_torch_step as peer

    kind = "bert" if case.encoder == "bert" else f"{case.encoder}_sparse"
    layers, hidden, vocab = size.num_hidden_layers, size.hidden_size, size.vocab_size
    model = peer.make_model(
        kind, layers=layers, hidden=hidden, vocab=vocab, bert_dropout=case.dropout
    )
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batch = peer.make_batch(rows, case.length, case.predictions, vocab)
    if case.encoder != "bert":
        del batch["token_type_ids"], batch["next_sentence_label"]
    batch = {name: each.cuda() for name, each in batch.items()}

    def run(steps: int) -> float:
        loss: Any = None
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return loss.item()  # waits for the GPU

    return run, torch.cuda.max_memory_allocated, torch.cuda.get_device_name()


def compare(name: str, program: str, asked: argparse.Namespace) -> None:
    """Reports differences of loss and gradients from float32, for plain and for other attention."""
    case = CASES[name]
    size = case.architecture(asked.layers or COMPARED_LAYERS)
    batch = _packed(_batch(case, COMPARED_ROWS))
    plain = Execution(dtype="float32", attention="xla")
    # On a GPU, the compiler tunes products in full float32 for minutes.
    expected = _gradients(size, batch, plain, jax.devices("cpu")[0])
    facts = {"case": name, "rows": COMPARED_ROWS, "length": case.length}
    facts |= {"layers": size.num_hidden_layers}
    facts |= {"device": jax.local_devices()[0].device_kind, "packages": ["jax", "flax"]}
    for attention in ("xla", program):
        execution = Execution.model_validate({"attention": attention})
        found = _gradients(size, batch, execution, jax.local_devices()[0])
        difference = functools.partial(report, attention=attention, **facts)
        difference("gpu_step.loss_difference", abs(found[0] / expected[0] - 1), "x")
        difference("gpu_step.gradient_difference", _distance(found[1], expected[1]), "x")


def _packed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the rows with three segments and padding."""
    rows, length = batch["input_ids"].shape
    cuts = np.sort(np.random.default_rng(1).integers(1, length, (rows, 3)), axis=1)
    segments = 1 + (np.arange(length) >= cuts[..., None]).sum(1)
    first = np.maximum.accumulate(
        np.where(np.diff(segments, axis=1, prepend=0) != 0, np.arange(length), 0), axis=1
    )
    packed = {
        "segment_ids": np.where(segments > 3, 0, segments),
        "position_ids": np.arange(length) - first,
    }
    return batch | {name: each.astype(np.int32) for name, each in packed.items()}


def _gradients(
    size: EncoderArchitecture,
    batch: dict[str, np.ndarray],
    execution: Execution,
    device: Any,
) -> tuple[float, list[np.ndarray]]:
    """Returns the loss and the gradients of the initial parameters."""
    task, mesh = make_task(size, execution), make_mesh(MeshSection(), [device])
    model = define_model(task.build)
    optimizer = make_optimizer(OptimizerSection(), model.axes)
    with jax.set_mesh(mesh):
        abstract = abstract_state(model, optimizer, mesh)
        params = draw_params(model, abstract.params, seed=0)
        state = initialise(params, optimizer, abstract, seed=0)
        placed = jax.device_put(batch, batch_sharding(mesh))
        loss, _, grads = jax.jit(make_gradients(task, model, accumulation=1))(state, placed, {})
    return float(loss), [np.asarray(each) for each in jax.tree.leaves(grads)]


def _distance(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Returns ‖found − expected‖ / ‖expected‖ over all gradients."""

    def square(arrays: Any) -> float:
        return sum(float(np.square(each).sum()) for each in arrays)

    differences = (one - other for one, other in zip(found, expected, strict=True))
    return (square(differences) / square(expected)) ** 0.5


if __name__ == "__main__":
    main()
