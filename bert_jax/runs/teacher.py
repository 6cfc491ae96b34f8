"""The frozen teacher of a distillation: the model of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import jax
import jax.numpy as jnp
from etils import epath

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.kernel_choice import second_execution
from bert_jax.errors import UserError, commas
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.parameter_groups import ParameterGroups
from bert_jax.runs.open_checkpoints import find_checkpoint, read_checkpoints, run_of_checkpoint
from bert_jax.runs.run_directory import open_run
from bert_jax.task import FrozenModel, Params
from bert_jax.text import Tokenizer
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.state import named

TEACHER: Final = "teacher"
"""Name of the teacher among the frozen models of a task."""

Layers: TypeAlias = Literal["every_kth"] | tuple[int, ...]
"""Numbers of the teacher's layers, one per layer of the student, from 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """The model of a run's checkpoint, without its parameters.

    Fields with ``compare=False`` do not affect the compiled step.
    """

    architecture: EncoderArchitecture  # of the phase that wrote the checkpoint
    execution: Execution
    heads: HeadsSection
    directory: epath.Path = dataclasses.field(compare=False)
    checkpoint: str = dataclasses.field(compare=False)  # as for `load_params`

    @property
    def build(self) -> Callable[[], EncoderModel]:
        """Function that makes the model, for `define_model`."""
        return encoder_builder(self.architecture, self.execution, self.heads)

    def check_positions(self, length: int, *, key: str) -> None:
        """Raises UserError if rows of `length` tokens do not fit the teacher."""
        positions = self.architecture.max_position_embeddings
        if length > positions:
            found = f"{self.directory} has {positions} positions, but rows have {length} tokens"
            raise UserError("teacher.positions", found, place=key)

    def load(self, abstract: Params, *, tokenizer: Tokenizer, key: str) -> Params:
        """Returns the parameters with the shardings of `abstract`.

        Raises UserError if the teacher has another vocabulary than the student. `key` is the
        setting that names the teacher.
        """
        run = open_run(self.directory)
        if run.tokenizer.hash != tokenizer.hash:
            theirs, ours = (f"{each.vocab_size:,} pieces" for each in (run.tokenizer, tokenizer))
            found = f"the tokenizer of {self.directory} ({theirs})"
            raise UserError.wrong("teacher.tokenizer", found, f"the student's ({ours})", place=key)

        def read(checkpoints: Checkpointer) -> Params:
            step = find_checkpoint(run, checkpoints, self.checkpoint).step
            return checkpoints.restore_params(abstract, step=step)

        return read_checkpoints(self.directory, read)

    def frozen(
        self,
        *,
        tokenizer: Tokenizer,
        key: str,
        initial: Callable[[Params, Params], Params] | None = None,
    ) -> FrozenModel:
        """Returns the frozen model, see `load`. For `initial`, see `FrozenModel`."""
        return FrozenModel(
            self.build, lambda abstract: self.load(abstract, tokenizer=tokenizer, key=key), initial
        )


def open_teacher(
    run_dir: str, *, student: EncoderArchitecture, execution: Execution, checkpoint: str
) -> Teacher:
    """Opens a run as the teacher of a student with this architecture and execution.

    `checkpoint` is as for `load_params`. Raises UserError if there is no such run or checkpoint.
    """
    run = run_of_checkpoint(open_run(run_dir), checkpoint=checkpoint)
    return Teacher(
        architecture=run.architecture,
        execution=_execution(run.architecture, student, execution),
        heads=run.heads,
        directory=run.directory,
        checkpoint=checkpoint,
    )


def _execution(
    architecture: EncoderArchitecture, student: EncoderArchitecture, execution: Execution
) -> Execution:
    """Returns the student's execution with the kernels that the teacher's forward pass can use."""
    without_dropout = architecture.with_dropout(0.0)  # a teacher only evaluates
    # Only the backward pass of the FFN has a kernel.
    found = second_execution(execution, without_dropout, first=student)
    return found.model_copy(update={"ffn": "xla"})


def spread_layers(layers: Layers, *, teacher: int, student: int, place: str) -> tuple[int, ...]:
    """Returns the number of the teacher's layer for each layer of the student.

    ``("every_kth", teacher=12, student=6) -> (0, 2, 4, 6, 8, 10)``

    Raises UserError if there are not `student` increasing numbers below `teacher`.
    """
    if student > teacher and layers == "every_kth":
        found = f"{student} layers of the student"
        raise UserError.wrong("teacher.layers", found, f"up to {teacher}, or null", place=place)
    if layers == "every_kth":
        layers = tuple(at * teacher // student for at in range(student))
    if len(layers) != student or sorted(set(layers)) != list(layers) or layers[-1] >= teacher:
        allowed = f"{student} increasing numbers from 0 to {teacher - 1}"
        raise UserError.wrong("teacher.layers", commas(layers), allowed, place=place)
    return layers


def student_params(
    params: Params,
    abstract: Params,
    *,
    layers: Sequence[int],
    teacher: ParameterGroups,
    student: ParameterGroups,
    key: str,
) -> Params:
    """Returns initial parameters of a student: copies of its teacher's.

    Args:
        params: parameters of the teacher.
        abstract: abstract parameters of the student. Modules that the teacher lacks, such as a
            head, are ignored.
        layers: numbers of the teacher's layers, one per layer of the student.
        teacher: parameter groups of the teacher.
        student: parameter groups of the student.
        key: setting that requires the copies, for messages.

    Raises:
        UserError: the teacher lacks a parameter of a module, or has another shape.
    """
    found = dict(named(params))
    wanted = {part: below for part, below in abstract.items() if part in params}

    def copied(path: jax.tree_util.KeyPath, like: jax.ShapeDtypeStruct) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        theirs = found.get(name)
        if theirs is not None and student.of(name).part == "layers":
            ours = student.of(name)
            if ours.first_layer >= 0:  # stacked
                chosen = [layers[at] for at in ours.last_layers(len(layers))]
                theirs = theirs[jnp.array(teacher.of(name).entries(chosen))]
        if theirs is None or theirs.shape != like.shape:
            shape = "none" if theirs is None else commas(theirs.shape)
            shapes = f"{name} of the student is {commas(like.shape)}, of the teacher {shape}"
            remedy = "Use the teacher's encoder and widths, or null."
            raise UserError("teacher.other_shape", f"{shapes}. {remedy}", place=key)
        # Without the copy, the train step would donate the teacher's own buffers.
        return jnp.copy(theirs)

    return jax.tree_util.tree_map_with_path(copied, wanted)
