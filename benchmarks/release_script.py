"""Builds the command that runs google-research/bert's ``create_pretraining_data.py``."""

import importlib.metadata
import shutil
import sys
from pathlib import Path
from typing import Final

PEER: Final = "google-research/bert create_pretraining_data.py"
SEQ_LENGTH: Final = 512
PREDICTIONS: Final = 77  # 15% of the tokens, as in the release's README
DUPE_FACTOR: Final = 5

# The script is for TensorFlow 1, whose functions TensorFlow 2 has in another module.
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
    """Returns the command that makes examples. Its output goes to ``<output>.log``.

    Args:
        script: path of the script. Its folder must contain ``tokenization.py``.
        text: a sentence per line, blank lines between documents.
        vocabulary: an uncased ``vocab.txt``.
        output: path of the TFRecords.
        seed: the script's random seed.
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
    """Returns the installed distribution of TensorFlow, as a list of one name."""
    return importlib.metadata.packages_distributions()["tensorflow"][:1]
