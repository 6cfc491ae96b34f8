"""Converts between our parameters and the tensors of another format.

Our parameters are a nested dict. Layers are stacked along a leading axis, and attention biases have
an axis of heads and an axis of columns in a head. Other formats have one matrix or vector per
layer, sometimes transposed or joined with other matrices, and do not pad the vocabulary. One table
of `NameRule`s describes all tensors, for import and export.
"""

import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import ml_dtypes
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.hf_format import NameRule
from bert_jax.errors import UserError, commas, did_you_mean, first_line
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.optim.optimizer import MomentsState
from bert_jax.text import Tokenizer
from bert_jax.train.state import ModelDefinition, define_model

Params: TypeAlias = dict[str, Any]  # nested dict of arrays, or of other objects with a shape

LAYERS_AXIS: Final = "layers"  # logical axis along which layers are stacked
VOCAB_AXIS: Final = "vocab"  # logical axis that is padded

# Types that convert to float32 without loss.
READABLE: Final = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


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


class Part(NamedTuple):
    """The part of another format's tensor that one of our parameters contains."""

    rule: NameRule
    layer: int | None  # index in our stacked tensor
    rows: int | None  # number of vocabulary rows without padding

    def take(self, ours: np.ndarray) -> np.ndarray:
        """Returns the part as a view of our stacked, padded tensor."""
        part = self._part(ours)
        if not self.rule.matrix:
            return part.reshape(math.prod(part.shape))
        return part.T if self.rule.transposed else part

    def put(self, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Copies the part into our stacked, padded tensor."""
        part = self._part(ours)
        part[...] = (theirs.T if self.rule.transposed else theirs).reshape(part.shape)

    def _part(self, ours: np.ndarray) -> np.ndarray:
        part = ours if self.layer is None else ours[self.layer]
        return part if self.rows is None else part[: self.rows]


class Placement(NamedTuple):
    """The place of another format's tensor in our parameters."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]  # one after the other along the first axis
    ends: tuple[int, ...]  # index after each part
    order: np.ndarray | None  # place of each row of the parts in their tensor

    def take(self, ours: Mapping[str, Any]) -> np.ndarray:
        """Returns their tensor from our tensors by path: a view if it has one part."""
        found = [each.take(np.asarray(ours[each.rule.ours])) for each in self.parts]
        whole = found[0] if len(found) == 1 else np.concatenate(found)
        return whole if self.order is None else whole[np.argsort(self.order)]

    def put(self, ours: Mapping[str, np.ndarray], theirs: np.ndarray) -> None:
        """Copies their tensor into our tensors."""
        theirs = theirs if self.order is None else theirs[self.order]
        parts = np.split(theirs, self.ends[:-1]) if len(self.parts) > 1 else [theirs]
        for each, part in zip(self.parts, parts, strict=True):
            each.put(ours[each.rule.ours], part)


def expand(
    table: Sequence[NameRule], model: ModelDefinition, *, architecture: EncoderArchitecture
) -> list[Placement]:
    """Returns a placement for every tensor of a model in another format, in the table's order.

    Args:
        table: rules for all tensors. Rules for heads that the model lacks have no effect.
        model: shapes and logical axes of our tensors.
        architecture: sizes of the model.

    Raises:
        ValueError: if the table lacks one of our tensors.
    """
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(model.params).items()}
    axes: dict[str, tuple[str, ...]] = flatten(model.axes)
    if forgotten := sorted(shapes.keys() - {rule.ours for rule in table}):
        raise ValueError(f"not in the table of names: {', '.join(forgotten)}")
    found = [rule for rule in table if rule.ours in shapes]
    return [
        _placement(tuple(rules), layer, shapes, axes, architecture)
        for _, rules in itertools.groupby(found, key=lambda rule: rule.theirs)
        for rules in [list(rules)]
        for layer in _layers(rules[0], shapes, axes)
    ]


def _layers(
    rule: NameRule, shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, tuple[str, ...]]
) -> Sequence[int | None]:
    """Returns the indices of the layers in our tensor. They are [None] if it is not stacked."""
    return range(shapes[rule.ours][0]) if axes[rule.ours][0] == LAYERS_AXIS else [None]


def _placement(
    rules: Sequence[NameRule],
    layer: int | None,
    shapes: Mapping[str, tuple[int, ...]],
    axes: Mapping[str, tuple[str, ...]],
    architecture: EncoderArchitecture,
) -> Placement:
    # A broadcast array has the shape, but needs no memory.
    empty = {rule.ours: np.broadcast_to(np.float32(0), shapes[rule.ours]) for rule in rules}
    parts = [
        Part(rule, layer, architecture.vocab_size if axes[rule.ours][0] == VOCAB_AXIS else None)
        for rule in rules
    ]
    sizes = [each.take(empty[each.rule.ours]).shape for each in parts]
    ends = tuple(itertools.accumulate(size[0] for size in sizes))
    number = None if layer is None else layer + rules[0].first_layer
    name = rules[0].theirs.format(layer=number)
    order = None if rules[0].order is None else rules[0].order(architecture)
    return Placement(name, (ends[-1], *sizes[0][1:]), tuple(parts), ends, order)


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
            unknown = f"is not part of this model{did_you_mean(name, wanted)}"
            raise tensor_error("tensor.unknown", source.path, name, unknown)
    for name, placement in wanted.items():
        _check_tensor(source, name, placement.shape)
    arrays = {path: np.zeros(leaf.shape, np.float32) for path, leaf in flatten(ours).items()}
    for name, placement in wanted.items():
        found = source.read(name)
        if not np.isfinite(found).all():
            raise tensor_error("tensor.not_finite", source.path, name, "contains NaN or infinity")
        placement.put(arrays, found)
    return unflatten(arrays)


def their_tensors(
    params: Params, placements: Sequence[Placement]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor under its name in the other format."""
    arrays = flatten(params)
    for placement in placements:
        yield placement.name, placement.take(arrays)


def part_of(model: ModelDefinition, paths: Collection[str]) -> ModelDefinition:
    """Returns the definition of the parameters with these paths."""

    def kept(nested: Params) -> Params:
        return unflatten({path: leaf for path, leaf in flatten(nested).items() if path in paths})

    return dataclasses.replace(model, params=kept(model.params), axes=kept(model.axes))


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
        missing = f"is missing{did_you_mean(name, source.specs)}"
        raise tensor_error("tensor.missing", source.path, name, missing)
    if found.dtype not in READABLE:
        raise wrong_type(source.path, name, found.dtype.name, [each.name for each in READABLE])
    if tuple(found.shape) != shape:
        what = f"has shape [{commas(found.shape)}], but config.json gives [{commas(shape)}]"
        raise tensor_error("tensor.shape", source.path, name, what)


def tensor_error(key: str, path: object, name: object, what: str) -> UserError:
    """Returns the error for a tensor in a file: ``model.safetensors: tensor NAME is missing``."""
    return UserError(key, f"tensor {name} {what}", place=path)


def wrong_type(path: str, name: str, found: str, allowed: Sequence[str]) -> UserError:
    """Returns the error for a tensor whose type cannot be read."""
    what = f"has type {found}, allowed: {commas(allowed)}"
    return tensor_error("tensor.type", path, name, what)


def damaged(key: str, path: object, kind: str, error: Exception) -> UserError:
    """Returns the error for weights that cannot be read as `kind`: ``a safetensors file``."""
    return UserError(
        key,
        f"cannot be read as {kind} ({first_line(error)}). If the download was cut off, repeat it.",
        place=path,
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
    notes: tuple[str, ...] = ()  # what an import left out, for the user
    generator: Params | None = None  # of pretraining: encoder and MLM head, if a file has it
    generator_settings: Mapping[str, Any] = {}  # settings of `objective.generator`
    model_type: str | None = None  # `model_type` of the Hugging Face checkpoint that it comes from


def definition_of(architecture: EncoderArchitecture, heads: HeadsSection) -> ModelDefinition:
    """Returns shapes and logical axes of the parameters, without allocating them."""
    return define_model(encoder_builder(architecture, Execution(), heads))
