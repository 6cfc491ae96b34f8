"""Inference over rows of different lengths, with few compiled batch shapes."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.inference.batches import BatchShape, PlannedBatch, plan_batches
from bert_jax.inference.execution import ForwardDtype, forward_model_of_run, in_read_dtypes
from bert_jax.inference.lengths import choose_lengths, reuse
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.model.shape_cost import ShapeCost, inference_cost
from bert_jax.parallel.compiling import compiling, made_once
from bert_jax.parallel.mesh import open_mesh, process_share
from bert_jax.parallel.sharding_rules import batch_parts, batch_sharding, replicated
from bert_jax.parallel.stop_signal import STOP
from bert_jax.runs.open_checkpoints import LoadedParams, load_params
from bert_jax.runs.run_directory import Run
from bert_jax.task import Batch
from bert_jax.text import Tokenizer
from bert_jax.train.prefetch import to_devices

_MOST_ROWS: Final = 1 << 20


def check_batch_size(rows: int | None) -> None:
    """Raises UserError for a ``--batch-size`` that no device can have."""
    if rows is not None and not 1 <= rows <= _MOST_ROWS:
        raise UserError.wrong("batch_size.range", rows, f"1 to {_MOST_ROWS}", place="--batch-size")


# On a CPU, the activations of a batch with this number of positions fit into the cache. With four
# times as many, a position takes up to 1.3 times as long.
CPU_POSITIONS: Final = 1024


class ComputedBatch(NamedTuple):
    """The outputs of a batch, without padding rows."""

    rows: np.ndarray  # int64 [n]: indices of the input rows
    size: int  # number of rows, padding rows included
    length: int  # number of positions per row, padding included
    outputs: Any  # outputs of the forward function, host arrays [n, ...]


class MakeBatch(Protocol):
    """A function that collates rows."""

    def __call__(
        self, rows: np.ndarray, *, batch_size: int, length: int
    ) -> Mapping[str, np.ndarray]:
        """Returns arrays ``[batch_size, ...]``: the rows at these indices, then padding rows."""
        ...


class BucketedInference:
    """Runs each row once through a model. Rows may have different lengths.

    Except for rounding, the outputs of a row do not depend on other rows. For each call,
    `choose_lengths` selects a few padded lengths. Rows are sorted by length and divided into
    batches, so that only the batch with the shortest rows can have padding rows. On a CPU, batches
    of long rows are smaller than `batch_size`. If `cost.passes` is above 1, all passes over the
    same rows use the same lengths, so that a resumed run reproduces its scores.

    Attributes:
        batch_size: maximum number of rows in a batch, over all hosts.
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
        """Compiles nothing: each batch shape is compiled at its first batch.

        Args:
            forward: function of (parameters, batch). The first axis of its outputs is the batch
                axis. If it is `made_once`, all its users share the compiled programs.
            mesh: devices.
            batch_size: maximum rows in a batch, rounded up to a multiple of the mesh's
                data-parallel size.
            max_length: maximum tokens of a row.
            few_rows: whether calls with fewer rows use a smaller, power-of-two batch size.
            cost: cost of compiling one more batch shape.
        """
        parts = batch_parts(mesh)
        self.batch_size = -(-batch_size // parts) * parts
        self._parts, self._few_rows = parts, few_rows
        self._on_cpu = mesh.devices.flat[0].platform == "cpu"
        self._mesh, self._share = mesh, process_share(mesh)
        self._max_length, self._cost = max_length, cost
        self._seen = 0  # number of rows in all calls so far
        self._met: set[BatchShape] = set()  # compiled shapes: (rows, length)
        self._forward = _jit_forward(forward, mesh)

    def __call__(
        self, params: Any, lengths: Sequence[int] | np.ndarray, make_batch: MakeBatch
    ) -> Iterator[ComputedBatch]:
        """Yields the outputs of every row, shortest rows first. Every host receives all outputs.

        `lengths` are the token counts, [rows]. `make_batch` collates this host's rows of a batch.
        """
        pending: tuple[np.ndarray, BatchShape, Any] | None = None
        for rows, shape in self._plan(np.asarray(lengths)):
            STOP.between_batches()
            outputs = self._dispatch(params, rows, shape, make_batch)
            # Dispatch this batch before fetching the previous one, so that the devices stay busy.
            if pending is not None:
                yield _fetch(*pending)
            pending = rows, shape, outputs
        if pending is not None:
            yield _fetch(*pending)

    def _size(self, length: int, rows: int) -> int:
        """Returns the number of rows in a batch of a length, for a call with `rows` rows."""
        most = self.batch_size
        if self._on_cpu:
            most = min(most, self._whole(max(CPU_POSITIONS // length, 1)))
        if not self._few_rows:
            return most
        return min(self._whole(1 << max(rows - 1, 0).bit_length()), most)

    def _whole(self, rows: int) -> int:
        return -(-rows // self._parts) * self._parts

    def _plan(self, lengths: np.ndarray) -> list[PlannedBatch]:
        """Returns the batches, shortest rows first."""
        count = len(lengths)
        if not count:
            return []
        program, slack = self._cost.program / self._cost.passes, 0.0
        if self._cost.passes == 1:  # assume that as many rows will follow as were seen
            self._seen += count
            slack = program / self._seen
            program = slack * count
        chosen = choose_lengths(lengths, max_length=self._max_length, program=program)
        compiled = [length for rows, length in self._met if rows == self._size(length, count)]
        chosen = reuse(chosen, compiled, slack=slack)
        shapes = [BatchShape(self._size(length, count), length) for length in chosen]
        return plan_batches(lengths, shapes)[::-1]

    def _dispatch(
        self, params: Any, rows: np.ndarray, shape: BatchShape, make_batch: MakeBatch
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


def _fetch(rows: np.ndarray, shape: BatchShape, outputs: Any) -> ComputedBatch:
    return ComputedBatch(
        rows, *shape, jax.tree.map(lambda leaf: leaf[: len(rows)], jax.device_get(outputs))
    )


class InferenceModel(NamedTuple):
    """A loaded model, with its parameters on devices, and its tokenizer."""

    name: str  # directory of the model, for error messages
    tokenizer: Tokenizer
    architecture: EncoderArchitecture
    heads: HeadsSection
    loaded: LoadedParams

    def in_read_dtypes(self) -> Self:
        """Returns the model with parameters as it reads them, see `in_read_dtypes`."""
        return self._replace(loaded=in_read_dtypes(self.loaded))

    def batches(
        self,
        forward: Callable[[Any, Batch], Any],
        *,
        batch_size: int,
        max_length: int,
        few_rows: bool,
    ) -> BucketedInference:
        """Returns a `BucketedInference` that runs a forward function of this model."""
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


def model_of_run(
    run: Run,
    *,
    checkpoint: str,
    ema: bool = False,
    mesh: Mesh | None = None,
    longest: int | None = None,
    dtype: ForwardDtype | None = None,
) -> InferenceModel:
    """Loads a checkpoint of a run; see `load_params`.

    For `longest` and `dtype`, see `forward_model`.
    """
    mesh = mesh or open_mesh()
    define = functools.partial(forward_model_of_run, mesh=mesh, longest=longest, dtype=dtype)
    loaded = load_params(run, checkpoint=checkpoint, ema=ema, mesh=mesh, define=define)
    name = str(run.directory)
    return InferenceModel(name, run.tokenizer, loaded.architecture, loaded.heads, loaded)
