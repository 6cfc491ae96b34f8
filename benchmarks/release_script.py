"""google-research/bert's ``create_pretraining_data.py`` as a command, under TensorFlow 2."""

import importlib.metadata
import shutil
import sys
from pathlib import Path
from typing import Final

PEER: Final = "google-research/bert create_pretraining_data.py"
SEQ_LENGTH: Final = 512
PREDICTIONS: Final = 77  # 15% of the tokens, as the release's README asks for
DUPE_FACTOR: Final = 5

# The script is of TensorFlow 1: its names are to be found in TensorFlow 2 under another.
_LAUNCHER: Final = """
import runpy, sys
import tensorflow.compat.v1 as tf
script = sys.argv[1]
sys.modules["tensorflow"] = tf
sys.path.insert(0, script.rpartition("/")[0])
sys.argv = sys.argv[1:]
runpy.run_path(script, run_name="__main__")
"""


def release_command(
    script: Path, *, text: Path, vocabulary: Path, output: Path, seed: int
) -> list[str]:
    """Returns the command that makes examples; what it prints goes into ``<output>.log``.

    Args:
        script: it; ``tokenization.py`` must lie beside it.
        text: a sentence per line, blank lines between documents.
        vocabulary: an uncased ``vocab.txt``.
        output: TFRecords.
        seed: of its draws.
    """
    flags = {
        "input_file": text,
        "output_file": output,
        "vocab_file": vocabulary,
        "do_lower_case": True,
        "max_seq_length": SEQ_LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "dupe_factor": DUPE_FACTOR,
        "random_seed": seed,
    }
    shell = shutil.which("sh") or "/bin/sh"
    redirect = [shell, "-c", 'log=$0; exec "$@" > "$log" 2>&1', f"{output}.log"]
    run = [sys.executable, "-c", _LAUNCHER, str(script.resolve())]
    return [*redirect, *run, *(f"--{name}={value}" for name, value in flags.items())]


def tensorflow() -> list[str]:
    """Returns the distribution that TensorFlow is from: it goes by several names."""
    return importlib.metadata.packages_distributions()["tensorflow"][:1]
