"""Small teachers for tests of distillation."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
from etils import epath

from bert_jax.encoders.build import encoder_builder
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.open_checkpoints import write_checkpoints
from bert_jax.runs.run_directory import write_run
from bert_jax.task import Task
from bert_jax.text import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.train.state import abstract_params, define_model, draw_params, trained_params
from tests.interop.hf_checkpoints import SPECIAL
from tests.support import small_encoder

HEADS = HeadsSection(pooler=False, next_sentence=False)


def made_up_tokenizer(pieces: int = 250) -> Tokenizer:
    """Returns a tokenizer with the number of pieces of `small_encoder`."""
    words = [f"w{at}" for at in range(pieces - len(SPECIAL))]
    return WordPieceTokenizer([*SPECIAL, *words], lower_case=True)


def write_teacher(
    root: Path,
    architecture: EncoderArchitecture,
    *,
    heads: HeadsSection = HEADS,
    tokenizer: Tokenizer | None = None,
    seed: int = 5,
) -> Path:
    """Writes a run with random parameters."""
    tokenizer = tokenizer or made_up_tokenizer()
    execution = Execution(dtype="float32")
    write_run(
        epath.Path(root),
        {},
        run_dir=str(root),
        execution=execution,
        heads=heads,
        architecture=architecture,
        tokenizer=tokenizer,
        origin={},
    )
    model = define_model(encoder_builder(architecture, execution, heads))
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])
    with write_checkpoints(root) as checkpoints:
        checkpoints.save_params(draw_params(model, abstract_params(model, mesh), seed=seed), step=3)
    return root


@functools.cache
def small_teacher() -> Path:
    """Returns a run with the sizes of `small_encoder`, made once per process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_teacher(Path(folder) / "teacher", small_encoder("bert", num_hidden_layers=4))


def frozen_params(task: Task, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Returns random parameters of a task's frozen models on a mesh."""
    models = {name: define_model(each.build) for name, each in task.frozen_models().items()}
    return {
        name: draw_params(model, trained_params(model, mesh), seed=9)
        for name, model in models.items()
    }
