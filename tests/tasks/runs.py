"""An imported run with random weights, and a learnable table."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.run_directory import CHECKPOINTS, write_run
from bert_jax.tasks.task import FinetuneTask
from bert_jax.text import load_wordpiece
from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import abstract_params, define_model, draw_params
from tests.support import small_architecture

GOOD = [f"good{number}" for number in range(4)]
BAD = [f"bad{number}" for number in range(4)]
FILLERS = [f"word{number}" for number in range(40)]
LABELS = ("bad", "good")
STEP = 7  # step of the checkpoint


def tiny_run(
    directory: Path,
    *,
    heads: HeadsSection | None = None,
    config: dict[str, Any] | None = None,
    steps: Sequence[int] = (STEP,),
    layers: int = 1,
) -> Path:
    """Writes a run with an encoder and a pooler, and returns its directory, `directory`/run.

    The model has a hidden size of 64, eight attention heads and 64 positions. The vocabulary
    contains the words of `write_table`. There is one checkpoint per step in `steps`, all with equal
    parameters.
    """
    vocabulary = directory / "vocab.txt"
    vocabulary.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.write_text("".join(f"{p}\n" for p in [*SPECIAL_PIECES, *GOOD, *BAD, *FILLERS]))
    tokenizer = load_wordpiece(vocabulary, lower_case=True)
    # Weights as large as in a trained model, so that runs learn in few steps.
    architecture = small_architecture(
        vocab_size=tokenizer.vocab_size,
        num_hidden_layers=layers,
        initializer_range=0.1,
        # Dropout would double the compile time. Tests that need it set `finetune.dropout`.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    heads = heads or HeadsSection(mlm=False, next_sentence=False)
    root = directory / "run"
    write_run(
        epath.Path(root),
        config or {},
        run_dir=str(root),
        execution=Execution(dtype="float32"),
        heads=heads,
        architecture=architecture,
        tokenizer=tokenizer,
        origin={"imported_from": "random numbers"},
    )
    section = CheckpointSection(keep_last=len(steps))
    with Checkpointer(root / CHECKPOINTS, section) as checkpointer:
        for step in steps:
            checkpointer.save_params(_random_params(architecture, heads), step=step)
    return root


@functools.cache
def _random_params(architecture: BertArchitecture, heads: HeadsSection) -> Any:
    """Returns parameters on one device: Orbax would compile a program for each replica."""
    # Every task builds the same model. Only `loss` needs labels.
    task = FinetuneTask(
        architecture=architecture, execution=Execution(dtype="float32"), heads=heads
    )
    model, mesh = define_model(task.build), make_mesh(MeshSection(data=1), jax.devices()[:1])
    return draw_params(model, abstract_params(model, mesh), seed=6)


def write_table(directory: Path, rows: int, seed: int) -> Path:
    """Writes ``<directory>/rows-<rows>-<seed>.csv`` with columns "text" and "label".

    Example row: ``word7 good2 word31 good0,good``. Half of the words reveal the label. All texts
    have 4 or 18 words, so that few lengths are compiled. Files with different seeds share few
    texts.
    """
    rng = np.random.default_rng(seed)
    lines = ["text,label"]
    for number in range(rows):
        label = LABELS[number % 2]
        telling = rng.choice(GOOD if label == "good" else BAD, rng.choice([2, 9]))
        words = rng.permutation([*telling, *rng.choice(FILLERS, len(telling))])
        lines.append(f"{' '.join(words)},{label}")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"rows-{rows}-{seed}.csv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def tiny_config(directory: Path, *, layers: int = 1, **changes: Any) -> dict[str, Any]:
    """Returns a fine-tuning configuration for a run of `tiny_run` and tables of `write_table`.

    Trains on 160 rows in batches of 16, and evaluates on 48 rows. Two epochs take a few seconds;
    with most seeds, the model learns the labels. `changes` override keys of "finetune". The run
    directory is `directory`/tuned.
    """
    finetune: dict[str, Any] = {
        "init_from": str(tiny_run(directory, layers=layers)),
        "task": {
            "kind": "table",
            "train": str(write_table(directory, 160, 1)),
            "dev": str(write_table(directory, 48, 2)),
            "text": "text",
            "label": "label",
        },
        "max_length": 32,
        "batch_size": 16,
        "epochs": 2,
        "optimizer": {"learning_rate": 1e-3},
    }
    return {"seed": 0, "run_dir": str(directory / "tuned"), "finetune": finetune | changes}
