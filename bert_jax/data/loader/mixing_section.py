"""The settings of a phase's datasets: one directory, or several with weights."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

import pydantic

from bert_jax.errors import SettingError, commas
from bert_jax.section import Section, check_path

_CLOSE: Final = 1e-6  # largest difference of a sum of weights from 1

Datasets: TypeAlias = str | Mapping[str, float] | Sequence[str]
"""A directory, weights by directory, or directories. Values from YAML have this form too."""


def paths_of(datasets: Datasets) -> tuple[str, ...]:
    """Returns the directories: ``{"data/a": 0.8, "data/b": 0.2} -> ("data/a", "data/b")``."""
    return (datasets,) if isinstance(datasets, str) else tuple(datasets)


def with_paths(datasets: Datasets, change: Callable[[str], str]) -> Any:
    """Returns the datasets with other directories."""
    if isinstance(datasets, str):
        return change(datasets)
    if isinstance(datasets, Mapping):
        return {change(path): weight for path, weight in datasets.items()}
    return type(datasets)(map(change, datasets))  # pyright: ignore[reportCallIssue]


def _check_datasets(found: Any) -> Any:
    """Checks the paths before pydantic, whose errors would name each member of the union."""
    if isinstance(found, Mapping):
        return _check_weights(found)
    paths = found if isinstance(found, list | tuple) else (found,)
    for path in paths:
        if not isinstance(path, str):
            raise SettingError.wrong(
                "setting.value", path, "a directory, a list of directories, or their weights"
            )
    _check_once(paths)
    checked = tuple(map(check_path, paths))
    return checked[0] if isinstance(found, str) else checked


def _check_weights(found: Mapping[Any, Any]) -> dict[str, float]:
    """Returns weights by checked path. Raises SettingError if a weight or their sum is wrong."""
    for path, weight in found.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise SettingError.wrong("mixing.weight", weight, "numbers from 0 to 1", place=path)
    _check_once(found)
    total = math.fsum(found.values())
    if abs(total - 1) > _CLOSE:
        raise SettingError.wrong("mixing.sum", f"weights with the sum {total:g}", "the sum 1")
    return {check_path(path): float(weight) for path, weight in found.items()}


def _check_once(paths: Any) -> None:
    """Raises SettingError for no path, or a path that occurs twice."""
    if not paths:
        raise SettingError.wrong("mixing.empty", "no datasets", "at least one")
    seen: set[str] = set()
    for path in paths:
        name = os.path.normpath(path)
        if name in seen:
            raise SettingError.wrong("mixing.twice", f"{path} twice", "each directory once")
        seen.add(name)


DatasetsSetting: TypeAlias = Annotated[
    str | dict[str, float] | tuple[str, ...], pydantic.BeforeValidator(_check_datasets)
]
"""A directory, weights by directory, or a list of directories."""
Weights: TypeAlias = Annotated[dict[str, float], pydantic.BeforeValidator(_check_datasets)]
"""Weights by directory. Their sum is 1."""


class MixingSection(Section):
    """How a phase mixes its datasets. Set either `smoothing` or `until`."""

    smoothing: float | None = pydantic.Field(default=None, ge=0, le=1)
    """For a list of datasets: exponent of each dataset's share of all tokens, as in
    `examples.mixture`. With 1 the shares of rows are the shares of tokens; with 0 all are equal."""
    until: Weights | None = None
    """For datasets with weights: the weights at the last step of the phase. Between the first and
    the last step, weights change linearly, in at most 1,000 stages."""


class MixedSection(Section):
    """The settings of a phase that decide its mixture."""

    dataset: DatasetsSetting
    """Directory of the dataset, local or ``gs://``: made by `bert-jax examples`, or TFRecords of
    google-research/bert. Several datasets are mixed: `{data/clinical: 0.8, data/wiki: 0.2}` has
    the share of each dataset among the rows. A list of directories needs `mixing.smoothing`."""
    mixing: MixingSection | None = None
    """How several datasets are mixed. null: with constant weights."""

    @pydantic.model_validator(mode="after")
    def _one_mixture(self) -> "MixedSection":
        mixing = self.mixing or MixingSection()
        smoothing, until = mixing.smoothing, mixing.until
        is_list = not isinstance(self.dataset, str | dict)
        if is_list != (smoothing is not None):
            allowed = "a number for a list of datasets" if is_list else "only with a list"
            raise SettingError.wrong(
                "mixing.smoothing",
                "nothing" if smoothing is None else smoothing,
                allowed,
                place="mixing.smoothing",
            )
        weights = self.dataset if isinstance(self.dataset, dict) else {}
        if until is not None and until.keys() != weights.keys():
            raise SettingError.wrong(
                "mixing.until",
                commas(until),
                commas(weights) or "only with weights",
                place="mixing.until",
            )
        for path, weight in weights.items():
            if not weight and not (until and until[path]):
                allowed = "a weight above 0 at the first or the last step"
                raise SettingError.wrong("mixing.never", weight, allowed, place=f"dataset.{path}")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """Directories of the datasets."""
        return paths_of(self.dataset)

    @property
    def is_mixed(self) -> bool:
        """Whether the phase mixes datasets."""
        return not isinstance(self.dataset, str)

    @property
    def dataset_name(self) -> str:
        """The directories as text: ``"data/clinical + data/wiki"``."""
        return " + ".join(self.paths)

    def path_key(self, key: str, path: str) -> str:
        """Returns the key of a dataset, from the key of the phase."""
        return f"{key}.dataset" + (f".{path}" if self.is_mixed else "")
