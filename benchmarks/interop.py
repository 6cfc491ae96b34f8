"""Measures seconds and peak memory of importing and exporting, each in its own process.

    python -m benchmarks.interop [--size base large] [--to hf tf stablehlo]

A checkpoint with random weights and both pretraining heads is written in Hugging Face's format. The
command line imports it and exports it in every format. If PyTorch is installed, the peer is Hugging
Face's ``from_pretrained`` and ``save_pretrained``. The peak is the maximum resident memory,
libraries included. ``above`` is the peak minus the peak of the same verb at size tiny.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.report import report
from bert_jax.encoders.bert.section import BertSection
from bert_jax.interop.hf_checkpoint import write_hf
from bert_jax.interop.tensor_conversion import Pretrained, definition_of
from bert_jax.model.section import HeadsSection
from bert_jax.text import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

VOCAB = 30_522
PEER = """
import sys, transformers
model = transformers.BertForPreTraining.from_pretrained(sys.argv[1])
model.save_pretrained(sys.argv[2])
"""


class Cost(NamedTuple):
    """Costs of one process."""

    seconds: float
    peak_mib: float


def main() -> None:
    """Measures every requested size and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--size", nargs="+", choices=list(BertSection.named_sizes), default=["base", "large"]
    )
    formats = (
        ["hf", "tf", "stablehlo"] if importlib.util.find_spec("tensorflow") else ["hf", "stablehlo"]
    )
    parser.add_argument("--to", nargs="+", choices=["hf", "tf", "stablehlo"], default=formats)
    arguments = parser.parse_args()
    floor = measure("tiny", arguments.to)
    for size in arguments.size:
        for name, cost in measure(size, arguments.to).items():
            facts = {"size": size, "peer": name if name.startswith("hf_torch") else None}
            report(f"interop.{name}.time", cost.seconds, "s", **facts)
            report(
                f"interop.{name}.peak",
                cost.peak_mib,
                "MiB",
                above=round(cost.peak_mib - floor[name].peak_mib),
                checkpoint=round(checkpoint_mib(size)),
                **facts,
            )


def measure(size: str, formats: list[str]) -> dict[str, Cost]:
    """Returns the costs by name: of the import, and of the export to each format."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        source, run = root / "source", root / "run"
        write_source(source, size)
        verb = [sys.executable, "-m", "bert_jax.cli"]
        costs = {"import_hf": timed([*verb, "import", str(source), str(run)])}
        for to in formats:
            command = [*verb, "export", str(run), str(root / to), "--to", to]
            costs[f"export_{to}"] = timed(command)
        if "tf" in formats:
            costs["import_tf"] = timed([*verb, "import", str(root / "tf"), str(root / "back")])
        if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
            command = [sys.executable, "-c", PEER, str(source), str(root / "peer")]
            costs["hf_torch_both"] = timed(command)
        return costs


def write_source(directory: Path, size: str) -> None:
    """Writes a checkpoint with random weights in Hugging Face's format."""
    section = BertSection.model_validate({"size": size})
    architecture = section.resolve(vocab_size=VOCAB)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape, np.float32),
        definition_of(architecture, HeadsSection()).params,
    )
    directory.mkdir()
    write_hf(directory, Pretrained(architecture, HeadsSection(), params, tokenizer()))


def tokenizer() -> Tokenizer:
    """Returns a tokenizer with made-up pieces."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *(f"piece{index}" for index in range(VOCAB - len(special)))]
    return WordPieceTokenizer(pieces, lower_case=True)


def checkpoint_mib(size: str) -> float:
    """Returns the size of the checkpoint's arrays in MiB."""
    architecture = BertSection.model_validate({"size": size}).resolve(vocab_size=VOCAB)
    leaves = jax.tree.leaves(definition_of(architecture, HeadsSection()).params)
    return sum(leaf.size for leaf in leaves) * 4 / 2**20


def timed(command: list[str]) -> Cost:
    """Runs a command and returns its seconds and its peak resident memory."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return Cost(time.perf_counter() - start, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
