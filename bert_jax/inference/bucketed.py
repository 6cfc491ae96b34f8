"""Inference over rows of different lengths, with few batch shapes, each compiled once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.inference.lengths import choose_lengths, fitting, reuse
from bert_jax.model.config import Architecture, HeadsSection
from bert_jax.model.shape_cost import ShapeCost, inference_cost
from bert_jax.parallel.compiling import compiling, made_once
from bert_jax.parallel.mesh import process_share
from bert_jax.parallel.sharding_rules import batch_parts, batch_sharding, replicated
from bert_jax.parallel.stop_signal import STOP
from bert_jax.runs.open_checkpoints import LoadedParams, load_params
from bert_jax.runs.run_directory import Run
from bert_jax.task import Batch
from bert_jax.text import Tokenizer
from bert_jax.train.prefetch import to_devices


def check_batch_size(rows: int | None) -> None:
    """Raises UserError for a ``--batch-size`` below 1."""
    if rows is not None and rows < 1:
        raise UserError(
            "batch_size.too_small",
            "found {found}, allowed: 1 or more",
            place="--batch-size",
            found=rows,
        )


class ComputedBatch(NamedTuple):
    """The outputs of a batch, without padding rows."""

    rows: np.ndarray  # int64 [n]: indices of the input rows
    length: int  # tokens of a row, padding included
    outputs: Any  # results of the forward function, as host arrays [n, ...]


class MakeBatch(Protocol):
    """A function that collates rows."""

    def __call__(
        self, rows: np.ndarray, *, batch_size: int, length: int
    ) -> Mapping[str, np.ndarray]:
        """Returns arrays ``[batch_size, ...]`` of the rows with these indices, and padding rows."""
        ...


class BucketedInference:
    """Runs rows of different lengths through a model, each row once.

    The outputs of a row do not depend on other rows, except for rounding. Each row is padded to one
    of a few lengths, which `choose_lengths` chooses for the rows of each call. If the same rows are
    computed in several passes, all passes use the same lengths, so a resumed run reproduces the
    figures of an uninterrupted run.

    Attributes:
        batch_size: rows of a batch on all hosts together.
    """

    def __init__(
        self,
        forward: Callable[[Any, Batch], Any],
        mesh: Mesh,
        *,
        batch_size: int,
        max_length: int,
        few_rows: bool = False,
        cost: ShapeCost,
    ) -> None:
        """Compiles nothing. The first batch of each shape is compiled when it runs.

        Args:
            forward: function of parameters and batch. The first axis of its outputs is the batch
                axis. If the function is `made_once`, all its users share the compiled programs.
            mesh: devices.
            batch_size: rows of a batch. Rounded up to a multiple of the mesh's data-parallel size.
            max_length: maximum tokens of a row.
            few_rows: whether calls with fewer rows use smaller batches, of a power of two rows.
            cost: cost of compiling a program.
        """
        parts = batch_parts(mesh)
        self.batch_size = -(-batch_size // parts) * parts
        self._parts, self._few_rows = parts, few_rows
        self._mesh, self._share = mesh, process_share(mesh)
        self._max_length, self._cost = max_length, cost
        self._seen = 0  # number of rows of all calls so far
        self._met: set[tuple[int, int]] = set()  # compiled shapes: (rows, length)
        self._forward = _jit_forward(forward, mesh)

    def __call__(
        self, params: Any, lengths: Sequence[int] | np.ndarray, make_batch: MakeBatch
    ) -> Iterator[ComputedBatch]:
        """Yields the outputs of every row once, shortest rows first. Every host gets all outputs.

        `lengths` are the tokens of each row, [rows]. `make_batch` collates this host's rows of a
        batch.
        """
        pending: tuple[np.ndarray, int, Any] | None = None
        size = self._size(len(lengths))
        for rows, length in self._plan(np.asarray(lengths), size):
            STOP.between_batches()
            outputs = self._dispatch(params, rows, (size, length), make_batch)
            # Fetch the previous batch after dispatching this one, so that the devices never wait.
            if pending is not None:
                yield _fetch(*pending)
            pending = rows, length, outputs
        if pending is not None:
            yield _fetch(*pending)

    def _size(self, rows: int) -> int:
        if not self._few_rows:
            return self.batch_size
        enough = 1 << max(rows - 1, 0).bit_length()
        return min(-(-enough // self._parts) * self._parts, self.batch_size)

    def _plan(self, lengths: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
        if not len(lengths):
            return
        program, slack = self._cost.program / self._cost.passes, 0.0
        if self._cost.passes == 1:  # expect as many rows again as so far
            self._seen += len(lengths)
            slack = program / self._seen
            program = slack * len(lengths)
        chosen = choose_lengths(lengths, max_length=self._max_length, program=program)
        compiled = [length for rows, length in self._met if rows == size]
        chosen = reuse(chosen, compiled, slack=slack)
        found = fitting(lengths, chosen)
        for length in np.unique(found).tolist():
            members = np.flatnonzero(found == length)
            for start in range(0, len(members), size):
                yield members[start : start + size], length

    def _dispatch(
        self, params: Any, rows: np.ndarray, shape: tuple[int, int], make_batch: MakeBatch
    ) -> Any:
        size, length = shape
        local = make_batch(
            rows[self._share.part(size)], batch_size=size // self._share.count, length=length
        )
        with jax.set_mesh(self._mesh):
            placed = to_devices(local, batch_sharding(self._mesh), shares=self._share.count)
            if shape in self._met:
                return self._forward(params, placed)
            self._met.add(shape)
            with compiling(f"the model for {size} × {length} tokens"):
                return self._forward(params, placed)


@made_once
def _jit_forward(forward: Callable[[Any, Batch], Any], mesh: Mesh) -> jax.stages.Wrapped:
    return jax.jit(forward, out_shardings=replicated(mesh))


def _fetch(rows: np.ndarray, length: int, outputs: Any) -> ComputedBatch:
    return ComputedBatch(
        rows, length, jax.tree.map(lambda leaf: leaf[: len(rows)], jax.device_get(outputs))
    )


class InferenceModel(NamedTuple):
    """A model with parameters on devices, from a run or another program, and its tokenizer."""

    name: str  # directory of the model, for messages
    tokenizer: Tokenizer
    architecture: Architecture
    heads: HeadsSection
    loaded: LoadedParams

    def batches(
        self,
        forward: Callable[[Any, Batch], Any],
        *,
        batch_size: int,
        max_length: int,
        few_rows: bool,
    ) -> BucketedInference:
        """Returns the `BucketedInference` of a forward function with this model."""
        mesh = self.loaded.mesh
        cost = inference_cost(self.architecture, mesh, max_length=max_length)
        return BucketedInference(
            forward,
            mesh,
            batch_size=batch_size,
            max_length=max_length,
            few_rows=few_rows,
            cost=cost,
        )


def model_of_run(run: Run, *, checkpoint: str, mesh: Mesh | None = None) -> InferenceModel:
    """Loads a checkpoint of a run; see `load_params`."""
    loaded = load_params(run, checkpoint=checkpoint, mesh=mesh)
    return InferenceModel(str(run.directory), run.tokenizer, run.architecture, run.heads, loaded)
