"""Fits the cost models of quick plans (docs/planning.md) to the cycles of exact ones.

    python -m benchmarks.op_cycles > bert_jax/planning/compilation/op_cycles.yaml

Compiles four layers of BERT-Base with embeddings, heads and optimizer to machine code, with 256
rows of 512 tokens, for one slice of each generation. Comments in the output give the sum of
estimates divided by the sum of the exact cycles, for matrix products and for other operations. Each
generation takes a few minutes. It needs libtpu but no TPU.
"""

import datetime
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from bert_jax.config import parse_config
from bert_jax.parallel.accelerators import Accelerator
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.compiler_files import compile_exactly, read_coded
from bert_jax.planning.compilation.cycles import by_schedule
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernels import read_schedules, write_schedules
from bert_jax.planning.compilation.op_cycles import (
    CostModel,
    Features,
    LinearCost,
    features_of,
    is_estimated,
)
from bert_jax.planning.compilation.program import PRODUCTS, Program
from bert_jax.planning.compiler import TPU_COMPILER
from bert_jax.verbs.plan import train_step

TOPOLOGIES = ("v3:4x4", "v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4")
VOCAB = 30_522
WIDTHS_OF_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
LAYERS = 4  # fewer layers have too few kinds of products
STARTS = 12  # number of random starts; the best result is used
HEAD = """\
# Cost models of `op_cycles.py`: cycles of each operation for each of its features, by generation.
# Fitted by: python -m benchmarks.op_cycles > bert_jax/planning/compilation/op_cycles.yaml
date: {date}
libtpu: [{libtpu}]
models:"""
PROGRAM, SCHEDULES = "program", "schedules"  # names of folders
Observed = list[tuple[Features, int, int]]  # features, exact cycles, trips


def main() -> None:
    """Prints the file of cost models."""
    print(HEAD.format(date=datetime.date.today(), libtpu=importlib.metadata.version("libtpu")))
    for name in TOPOLOGIES:
        accelerator = parse_topology(name).accelerator
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", __spec__.name, "--compile", name, folder]
            subprocess.run(command, check=True, env=os.environ | TPU_COMPILER)
            print(model(accelerator, Path(folder)), flush=True)


def model(accelerator: Accelerator, folder: Path) -> str:
    """Returns one generation's entry of the file, fitted to the cycles of a compiled program."""
    observed: dict[bool, Observed] = {True: [], False: []}
    module = parse_hlo(read_coded(folder / PROGRAM))
    program = Program.of(module)
    if accelerator.judged_by_schedule:
        schedules = read_schedules(folder / SCHEDULES, program)
        program = Program.of(module, by_schedule(schedules, accelerator))
    for found in program.operations:
        if found.cycles is not None and is_estimated(found):
            features = features_of(found, accelerator)
            observed[found.kind == PRODUCTS].append((features, found.cycles, found.trips))
    lines = [f"  {accelerator.name}:"]
    for is_product, seen in observed.items():
        # By schedule, no operation is faster than the matrix units and HBM.
        least = float(accelerator.judged_by_schedule)
        linear = fit(seen, is_product=is_product, least=least)
        weights = ", ".join(f"{weight:.3g}" for weight in linear.weights)
        lines.append(
            f"    {'products' if is_product else 'others'}: "
            f"{{weights: [{weights}], start: {linear.start:.0f}}}"
            f"  # {_ratio(linear, seen, is_product=is_product):.3f}"
        )
    return "\n".join(lines)


def fit(observed: Observed, *, is_product: bool, least: float) -> LinearCost:
    """Returns the weights that minimise the absolute errors plus half the bias of their sum.

    `least` is the smallest weight of products and of bytes in HBM.
    """
    features = np.array([each for each, _, _ in observed])
    cycles = np.array([each for _, each, _ in observed], float)
    trips = np.array([each for _, _, each in observed])
    whole = (cycles * trips).sum()

    def bounded(numbers: np.ndarray) -> np.ndarray:
        return np.maximum(np.abs(numbers), [least] * 2 + [0.0] * 5)

    def loss(numbers: np.ndarray) -> float:
        found = _predicted(bounded(numbers), features, is_product=is_product)
        bias = abs((found * trips).sum() / whole - 1)
        return float((np.abs(found - cycles) * trips).sum() / whole + bias / 2)

    random = np.random.default_rng(0)
    first = np.array([1, 1.5, 0.5, 0.3, 3, 2, 1000.0])
    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-3, "fatol": 1e-4}
    tries = [
        minimize(loss, first * random.uniform(0.3, 2, 7), method="Nelder-Mead", options=options)
        for _ in range(STARTS)
    ]
    *weights, start = bounded(min(tries, key=lambda one: one.fun).x).tolist()
    weights[0] *= is_product  # only products have this feature
    return LinearCost(weights=Features(*weights), start=start)


def _predicted(numbers: np.ndarray, features: np.ndarray, *, is_product: bool) -> np.ndarray:
    products, hbm, *rest = (features * numbers[:6]).T
    if is_product:
        return np.maximum(products, hbm) + sum(rest) + numbers[6]
    return np.maximum(hbm, sum(rest)) + numbers[6]


def _ratio(linear: LinearCost, observed: Observed, *, is_product: bool) -> float:
    model = CostModel(products=linear, others=linear)
    kind = PRODUCTS if is_product else ""
    found = sum(model.cycles(kind, features) * trips for features, _, trips in observed)
    return found / sum(cycles * trips for _, cycles, trips in observed)


def compile_layers(topology: str, folder: str) -> None:
    """Writes the program of `LAYERS` layers and its schedules to a folder.

    Each call needs a new process, because libtpu is loaded once per process.
    """
    from bert_jax.parallel.mesh import make_mesh
    from bert_jax.planning.compilation.lowering import lower_step, open_devices

    for name in (PROGRAM, SCHEDULES):
        Path(folder, name).mkdir()
    write_schedules(Path(folder, SCHEDULES))
    phase = {"dataset": "none", "steps": 1, "seq_length": 512, "batch_size": 256}
    values = {
        "model": {"architecture": WIDTHS_OF_BASE | {"num_hidden_layers": LAYERS}},
        "train": {"evaluation": None, "phases": [phase | {"max_predictions": 77}]},
    }
    config = parse_config(values, source="benchmark")
    request = train_step(config, topology, vocab_size=VOCAB)
    mesh = make_mesh(request.mesh, open_devices(parse_topology(topology), slices=1))
    compile_exactly(lower_step(request, mesh).lowered, Path(folder, PROGRAM))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        compile_layers(*sys.argv[2:])
    else:
        main()
