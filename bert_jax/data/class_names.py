"""Names of numbered classes, which `datasets` stores beside a table's columns."""

import json
import types
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

# Names by column: {"label": ("neg", "pos")}. The values of such a column are indices.
ClassNames: TypeAlias = Mapping[str, tuple[str, ...]]
NO_CLASSES: Final[ClassNames] = types.MappingProxyType({})

_METADATA_KEY: Final = b"huggingface"  # key of the features in a Parquet or Arrow schema


def names_of_features(features: Any) -> ClassNames:
    """Returns the names of all columns of classes, or of lists of classes.

    `features` is the result of `datasets.Features.to_dict`. Unknown forms have no names.
    """
    found = features.items() if isinstance(features, Mapping) else ()
    return {column: names for column, feature in found if (names := _names(feature))}


def names_of_schema(metadata: Mapping[bytes, bytes] | None) -> ClassNames:
    """Returns the names of all columns of classes from the metadata of an Arrow schema."""
    try:
        found = json.loads((metadata or {}).get(_METADATA_KEY, b"{}"))
        return names_of_features(found["info"]["features"])
    except (ValueError, KeyError, TypeError, RecursionError):  # not written by `datasets`
        return {}


def _names(feature: Any) -> tuple[str, ...]:
    # Lists of classes: {"feature": …, "_type": "List" or "Sequence"}, formerly […].
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, Mapping):
        return ()
    if feature.get("_type") != "ClassLabel":
        return _names(feature.get("feature"))
    names: Any = feature.get("names")
    texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if texts else ()
