"""Converts between our parameters and the tensors of another format.

Our parameters are a nested dict. Layers are stacked along a leading axis, and attention biases have
an axis of heads and an axis of columns in a head. Other formats have one matrix or vector per
layer, sometimes transposed, and do not pad the vocabulary. One table of `NameRule`s describes all
tensors, for import and export.
"""

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import ml_dtypes
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.encoders.build import encoder_builder
from bert_jax.errors import UserError, did_you_mean
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.optim.optimizer import MomentsState
from bert_jax.text import Tokenizer
from bert_jax.train.state import define_model

Params: TypeAlias = dict[str, Any]  # nested dict of arrays, or of other objects with a shape

STACKED: Final = "encoder/layers/"

# Types that convert to float32 without loss.
READABLE: Final = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class NameRule(NamedTuple):
    """How one of our tensors is named and stored in another format.

    ``NameRule("pooler/dense/kernel", "pooler.dense.weight", matrix=True, transposed=True)``
    """

    ours: str  # path in our nested dict
    theirs: str  # name in the other format, with {layer} if our tensor is stacked
    matrix: bool = False  # whether their tensor is a matrix; otherwise it is a vector
    transposed: bool = False  # whether their matrix is [outputs, inputs]
    vocabulary: bool = False  # whether the first axis is the vocabulary, which we pad


class TensorSpec(NamedTuple):
    """Shape and type of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype


class TensorSource(Protocol):
    """A checkpoint's named tensors, read one at a time."""

    path: str
    files: list[Path]  # files that contain the tensors
    specs: dict[str, TensorSpec]  # shapes and types by tensor name

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        ...


class Placement(NamedTuple):
    """The place of another format's tensor in our parameters."""

    name: str
    shape: tuple[int, ...]
    rule: NameRule
    layer: int | None  # index in our stacked tensor
    rows: int | None  # number of vocabulary rows without padding

    def take(self, ours: np.ndarray) -> np.ndarray:
        """Returns their tensor as a view of our stacked, padded tensor."""
        part = self._part(ours)
        if not self.rule.matrix:
            return part.reshape(math.prod(part.shape))
        return part.T if self.rule.transposed else part

    def put(self, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Copies their tensor into our stacked, padded tensor."""
        part = self._part(ours)
        part[...] = (theirs.T if self.rule.transposed else theirs).reshape(part.shape)

    def _part(self, ours: np.ndarray) -> np.ndarray:
        part = ours if self.layer is None else ours[self.layer]
        return part if self.rows is None else part[: self.rows]


def expand(table: Sequence[NameRule], ours: Params, *, vocab_size: int) -> list[Placement]:
    """Returns a placement for every tensor of a model in another format, in the table's order.

    Args:
        table: rules for all tensors. Rules for heads that the model lacks have no effect.
        ours: nested dict of arrays, or of other objects with a shape.
        vocab_size: number of vocabulary rows without padding.

    Raises:
        ValueError: if the table lacks one of our tensors.
    """
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(ours).items()}
    if forgotten := sorted(shapes.keys() - {rule.ours for rule in table}):
        raise ValueError(f"not in the table of names: {', '.join(forgotten)}")
    placements = []
    for rule in table:
        if rule.ours not in shapes:
            continue
        shape = shapes[rule.ours]
        rows = vocab_size if rule.vocabulary else None
        for layer in range(shape[0]) if rule.ours.startswith(STACKED) else [None]:
            placement = Placement(rule.theirs.format(layer=layer), (), rule, layer, rows)
            # A broadcast array has the shape, but needs no memory.
            empty = np.broadcast_to(np.zeros((), np.float32), shape)
            placements.append(placement._replace(shape=placement.take(empty).shape))
    return placements


def read_params(
    source: TensorSource,
    placements: Sequence[Placement],
    ours: Params,
    *,
    ignored: Mapping[str, str],
) -> Params:
    """Reads a model from another format's file, one tensor at a time.

    Args:
        source: the file.
        placements: result of `expand`.
        ours: nested dict with the shapes of the result.
        ignored: patterns of tensor names that are not parameters, with the reasons.

    Returns:
        Nested dict of float32 arrays. Rows that pad the vocabulary are zero.

    Raises:
        UserError: if a tensor is missing, unknown, of another shape, not of a float type, or not
            finite.
    """
    wanted = {placement.name: placement for placement in placements}
    for name in source.specs:
        if name not in wanted and reason_to_ignore(name, ignored) is None:
            raise UserError(
                "tensor.unknown",
                "tensor {name} is not part of this model{hint}",
                place=source.path,
                name=name,
                hint=did_you_mean(name, wanted),
            )
    for name, placement in wanted.items():
        _check_tensor(source, name, placement.shape)
    arrays = {path: np.zeros(leaf.shape, np.float32) for path, leaf in flatten(ours).items()}
    for name, placement in wanted.items():
        found = source.read(name)
        if not np.isfinite(found).all():
            raise UserError(
                "tensor.not_finite",
                "tensor {name} contains NaN or infinity, allowed: finite numbers",
                place=source.path,
                name=name,
            )
        placement.put(arrays[placement.rule.ours], found)
    return unflatten(arrays)


def their_tensors(
    params: Params, placements: Sequence[Placement]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor under its name in the other format, as a view of our array."""
    arrays = flatten(params)
    for placement in placements:
        yield placement.name, placement.take(np.asarray(arrays[placement.rule.ours]))


def reason_to_ignore(name: str, ignored: Mapping[str, str]) -> str | None:
    """Returns the reason why a tensor is not a parameter, or None for a parameter."""
    reasons = (why for pattern, why in ignored.items() if fnmatch.fnmatchcase(name, pattern))
    return next(reasons, None)


def flatten(nested: Params) -> Params:
    """``{"a": {"b": x}}`` → ``{"a/b": x}``."""
    return flatten_dict(nested, sep="/")


def unflatten(flat: Params) -> Params:
    """``{"a/b": x}`` → ``{"a": {"b": x}}``."""
    return unflatten_dict(flat, sep="/")


def _check_tensor(source: TensorSource, name: str, shape: tuple[int, ...]) -> None:
    found = source.specs.get(name)
    if found is None:
        raise UserError(
            "tensor.missing",
            "tensor {name} is missing, but the model needs it{hint}",
            place=source.path,
            name=name,
            hint=did_you_mean(name, source.specs),
        )
    if found.dtype not in READABLE:
        raise wrong_type(source.path, name, found.dtype.name, [each.name for each in READABLE])
    if tuple(found.shape) != shape:
        raise UserError(
            "tensor.shape",
            "tensor {name} has shape [{found}], but the configuration gives [{expected}]",
            place=source.path,
            name=name,
            found=list(found.shape),
            expected=list(shape),
        )


def wrong_type(path: str, name: str, found: str, allowed: Sequence[str]) -> UserError:
    """Returns the error for a tensor whose type cannot be read."""
    return UserError(
        "tensor.type",
        "tensor {name} has type {found}, allowed: {allowed}",
        place=path,
        name=name,
        found=found,
        allowed=allowed,
    )


class Pretrained(NamedTuple):
    """A model with its parameters and its tokenizer, independent of the file format."""

    architecture: EncoderArchitecture
    heads: HeadsSection
    params: Params  # nested dict of float32 arrays, stacked and padded
    tokenizer: Tokenizer
    moments: MomentsState | None = None  # Adam's moments, stacked and padded like `params`
    step: int | None = None  # number of optimizer steps, if known
    files: tuple[Path, ...] = ()  # source files except the tokenizer's files
    ignored: Mapping[str, str] = MappingProxyType({})  # tensors not read, with the reasons


def model_shapes(architecture: EncoderArchitecture, heads: HeadsSection) -> Params:
    """Returns the parameters' shapes and dtypes as a nested dict, without allocating them."""
    return define_model(encoder_builder(architecture, Execution(), heads)).params
