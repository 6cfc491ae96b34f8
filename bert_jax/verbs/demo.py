"""`bert-jax demo`: the whole workflow from text to filled masks, in minutes on a laptop."""

import importlib.resources
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig, load_config
from bert_jax.data.dataset.provenance import PROVENANCE_NAME, read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.files.atomic import write_errors
from bert_jax.inference.fill_mask import Filled
from bert_jax.narration import doing, narrator_of, speaking
from bert_jax.pipelines.python_docs import write_python_docs
from bert_jax.runs.evaluation import Evaluation
from bert_jax.runs.settings import REPORT
from bert_jax.section import need
from bert_jax.verbs.evaluate import evaluate
from bert_jax.verbs.examples import examples
from bert_jax.verbs.fill_mask import fill_mask
from bert_jax.verbs.pretrain import pretrain
from bert_jax.verbs.vocab import vocab
from bert_jax.workflows.phases import VALIDATION

SENTENCES: Final = (
    "if the file does not exist , an [MASK] is raised .",
    "raises a [MASK] if the argument is not an integer .",
    "return true if all elements of the [MASK] are true .",
)


class Demo(NamedTuple):
    """The demo's result."""

    config: RunConfig
    unigram_entropy: float
    majority_accuracy: float  # accuracy of always predicting the more frequent NSP label
    evaluation: Evaluation
    filled: list[Filled]
    seconds: float


def demo(
    directory: str = "runs/demo", *, overrides: Sequence[str] = (), console: Console | None = None
) -> Demo:
    """Trains a vocabulary and a model on a mesh of simulated devices, then uses the model.

    If repeated after an interruption, skips finished steps and resumes the training.

    Args:
        directory: directory for all outputs.
        overrides: ``key=value`` settings that override ``configs/demo.yaml``.
        console: console for the progress.

    Raises:
        UserError: the directory cannot be written, or an override is invalid.
    """
    console = console or Console()
    with speaking(console):
        return _demo(directory, overrides, console)


def _demo(directory: str, overrides: Sequence[str], console: Console) -> Demo:
    started = time.monotonic()
    config = demo_config(directory, overrides)
    text = epath.Path(directory) / "text"
    with write_errors(text):
        text.mkdir(parents=True, exist_ok=True)

    console.rule("text: this Python's own documentation")
    if not list(text.glob("*.txt")):
        with doing("collecting the documentation"):
            write_python_docs(text)
    console.rule("vocab: text → tokenizer")
    section = need(config.vocab, "vocab", "demo")
    if not (epath.Path(section.output) / "vocab.txt").exists():
        vocab(config, console=console)
    console.print(f"{section.size} pieces in {section.output}")
    console.rule("examples: text + tokenizer → dataset")
    dataset = epath.Path(need(config.examples, "examples", "demo").output)
    if not (dataset / PROVENANCE_NAME).exists():
        examples(config, console=console)
    console.rule("pretrain: dataset → checkpoints, on 2 × 2 × 2 simulated devices")
    pretrain(config, console=console)
    console.rule("evaluate: held-out text, every example once")
    run_dir = need(config.run_dir, "run_dir", "demo")
    result = evaluate(run_dir, mesh=config.mesh, console=console)
    entropy = read_provenance(dataset).corpus.unigram_entropy
    guess = _majority_accuracy(dataset)
    _print_scores(result, entropy, guess, console)
    console.rule("fill-mask")
    filled = fill_mask(run_dir, SENTENCES, console=console)
    seconds, command = time.monotonic() - started, _command()
    console.rule(f"done in {seconds:.0f} s")
    narrator_of(console).say(
        f"The run is in {run_dir}. Next:\n"
        f'  {command} fill-mask {run_dir} "the [MASK] module"\n'
        f"  {epath.Path(run_dir) / REPORT}    (open this page in a browser)\n"
        f"  tensorboard --logdir {run_dir}/tensorboard    (needs: pip install tensorboard)\n"
        f"  {command} pretrain configs/pretrain/base.yaml    (your own corpus: see README.md)"
    )
    return Demo(config, entropy, guess, result, filled, seconds)


def demo_config(directory: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns ``configs/demo.yaml`` with all paths below `directory`."""
    places = {
        "run_dir": "run",
        "tokenizer": "tokenizer",
        "vocab.output": "tokenizer",
        "examples.tokenizer": "tokenizer",
        "examples.output": "dataset",
        "train.phases.0.dataset": "dataset",
    }
    moved = [f"{key}={directory}/{place}" for key, place in places.items()]
    moved += [f"{key}.input=['{directory}/text/*.txt']" for key in ("vocab", "examples")]
    with importlib.resources.as_file(
        importlib.resources.files("bert_jax.configs") / "demo.yaml"
    ) as path:
        return load_config(path, [*moved, *overrides])


def _command() -> str:
    """Returns the command of this program: its name if on PATH, otherwise a path."""
    if shutil.which("bert-jax"):
        return "bert-jax"
    beside = Path(sys.executable).with_name("bert-jax")
    if not beside.exists():
        return f"{sys.executable} -m bert_jax.cli"
    here = Path.cwd()
    return os.fspath(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def _majority_accuracy(dataset: epath.PathLike) -> float:
    """Returns the accuracy of always predicting the more frequent label.

    The accuracy exceeds 50%, because the last sentence of a document always gets a random next
    sentence.
    """
    held_out = open_dataset(dataset, VALIDATION)
    labels = [e.next_sentence_label for e in held_out.__getitems__(range(len(held_out)))]
    random_next = sum(labels) / len(labels)
    return max(random_next, 1 - random_next)


def _print_scores(result: Evaluation, entropy: float, guess: float, console: Console) -> None:
    """Prints MLM loss and NSP accuracy beside the scores of trivial predictions."""
    mlm, nsp = result.scores["mlm_loss"], result.scores["nsp_accuracy"]
    error = math.sqrt(guess * (1 - guess) / result.examples)
    narrator_of(console).say(
        f"MLM loss {mlm:.2f} on held-out text; knowing only how frequent each piece is gives "
        f"{entropy:.2f}. NSP accuracy {nsp:.1%}; always choosing the more frequent answer gives "
        f"{guess:.1%} ± {error:.1%}."
    )
