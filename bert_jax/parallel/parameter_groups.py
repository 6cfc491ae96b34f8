"""Parameter groups: which parts of a model its parameters belong to."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from bert_jax.parallel.sharding_rules import LogicalAxes

# `pooler`: parameters between the encoder and the heads.
Part = Literal["embeddings", "layers", "pooler", "heads"]


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
        for group in self:
            if f"{path}/".startswith(f"{group.prefix}/"):
                return group
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
