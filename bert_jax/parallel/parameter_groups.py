"""Parameter groups: which parts of a model its parameters belong to."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from bert_jax.parallel.sharding_rules import LogicalAxes

# `pooler`: parameters between the encoder and the heads.
Part = Literal["embeddings", "layers", "pooler", "heads"]


_STACK: Final = r"\b(encoder/\w+)"  # where the path of a stacked parameter may name a layer


class ParameterGroup(NamedTuple):
    """The parameters below a prefix.

    ``ParameterGroup("encoder/embeddings", "embeddings")``
    """

    prefix: str
    part: Part
    first_layer: int = 0  # layer of a stacked parameter's first entry; −1: the last layer
    title: str = ""  # name of a module outside the encoder in messages: ``the MLM head``
    sharing: tuple[int, ...] = ()  # number of layers that use each entry. Empty: one layer

    def last_layers(self, depth: int) -> np.ndarray:
        """Returns the last layer that uses each entry of a stacked parameter, int [entries]."""
        if self.sharing:
            return np.cumsum(self.sharing) - 1
        return np.arange(self.first_layer % depth, depth)

    def entries(self, layers: Sequence[int]) -> np.ndarray:
        """Returns the entry of a stacked parameter that each of some layers uses."""
        if self.sharing:
            return np.searchsorted(np.cumsum(self.sharing), layers, side="right")
        return np.asarray(layers) - self.first_layer


class ParameterGroups(tuple[ParameterGroup, ...]):
    """All groups of a model, in the order of the forward pass."""

    __slots__ = ()

    def shared(self, sharing: Mapping[str, tuple[int, ...]]) -> "ParameterGroups":
        """Returns the groups of an encoder whose layers share parameters.

        `sharing` has the numbers of layers that use each entry, by prefix of the group. A shared
        parameter belongs to the last layer that uses it.
        """
        return ParameterGroups(each._replace(sharing=sharing.get(each.prefix, ())) for each in self)

    def of(self, path: str) -> ParameterGroup:
        """Returns the group of a parameter: ``"encoder/embeddings/word"``.

        Raises ValueError if the parameter is in no group.
        """
        return self[self.index_of(path)]

    def index_of(self, path: str) -> int:
        """Returns the index of a parameter's group, see `of`."""
        for index, group in enumerate(self):
            if f"{path}/".startswith(f"{group.prefix}/"):
                return index
        raise ValueError(f"the parameter {path} is in no group")

    @property
    def titles(self) -> dict[str, str]:
        """Titles of the modules outside the encoder: ``{"mlm": "the MLM head", …}``."""
        return {group.prefix: group.title for group in self if group.title}

    def units(self, path: str, axes: LogicalAxes, *, depth: int) -> np.ndarray:
        """Returns the unit of each entry of a parameter, int32; the array broadcasts against it.

        Unit 0 is the embeddings, 1 to `depth` the layers, `depth` + 1 the pooler, and `depth` + 2
        all heads.
        """
        group = self.of(path)
        if group.part == "layers":
            units = group.last_layers(depth).astype(np.int32) + 1
            shape = [len(units) if name == "layers" else 1 for name in axes]
            return units.reshape(shape)
        return np.array(
            {"embeddings": 0, "pooler": depth + 1, "heads": depth + 2}[group.part], np.int32
        )

    def by_layer(self, path: str, values: list[float]) -> dict[str, float]:
        """Returns the values of a parameter's entries with one name per layer.

        ``("encoder/layers/output/kernel", [1.0, 2.0])`` →
        ``{"encoder/layers.0/output/kernel": 1.0, "encoder/layers.1/output/kernel": 2.0}``

        A parameter that is not stacked keeps its name. A parameter that layers share has the name
        of the last one.
        """
        group = self.of(path)
        if group.part != "layers" or group.first_layer < 0:
            return dict.fromkeys([path], *values)
        layers = group.last_layers(group.first_layer + len(values))
        return {
            re.sub(_STACK, rf"\1.{layer}", path, count=1): value
            for layer, value in zip(layers, values, strict=True)
        }

    def backward_order(self, name: str) -> tuple[int, int, int, str]:
        """Returns a sort key for names of `by_layer`: the order of the backward pass.

        Modules outside the encoder come first, then layers from last to first, then embeddings.
        """
        layer = re.search(_STACK + r"\.(\d+)", name)
        index = self.index_of(re.sub(_STACK + r"\.\d+", r"\1", name, count=1))
        group = self[index]
        if group.part == "layers":
            return 1, -int(layer[2]) if layer else -(1 << 30), -index, name
        return 2 if group.part == "embeddings" else 0, 0, -index, name
