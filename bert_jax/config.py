"""RunConfig: the sections that each package owns, from YAML and ``key=value`` overrides."""

import copy
import importlib.resources
import os
from collections.abc import Sequence
from typing import Any, Final, Self

import pydantic
from etils import epath

from bert_jax.data.loader.section import LoaderSection
from bert_jax.errors import UserError, counted, did_you_mean
from bert_jax.files.read import MAX_DEPTH, shown
from bert_jax.files.remote import is_remote
from bert_jax.files.yaml_file import dump_yaml, parse_yaml, read_yaml
from bert_jax.launch.section import SubmitSection
from bert_jax.model.config import ModelSection
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.pipelines.examples import ExamplesSection
from bert_jax.pipelines.vocabulary.train import VocabSection
from bert_jax.section import PathText, Section
from bert_jax.tasks.section import FinetuneSection
from bert_jax.train.sections import TrainSection
from bert_jax.validation import InvalidValue, validate

_CONFIGS: Final = "bert_jax.configs"
_SUFFIX: Final = ".yaml"
_NEW: Final = "new/"  # folder of those that `bert-jax new` copies
_RUN_CONFIG: Final = "config.yaml"  # of a run directory


class RunConfig(Section):
    """A whole job: text → tokenizer → dataset → run. Each verb needs only its own sections."""

    seed: int = pydantic.Field(default=0, ge=0)
    """Of every random choice of a run: parameters, dropout, masks, order of the examples."""
    run_dir: PathText | None = None
    """Where the run is written, local or ``gs://``. A run that is there is resumed."""
    tokenizer: PathText | None = None
    """The tokenizer's directory: of `bert-jax vocab`, or a Hugging Face one with a `vocab.txt`."""
    vocab: VocabSection | None = None
    """How `bert-jax vocab` trains a tokenizer."""
    examples: ExamplesSection | None = None
    """How `bert-jax examples` makes a dataset."""
    model: ModelSection | None = None
    """What is pretrained. `finetune` takes the model of `finetune.init_from`."""
    objective: ObjectiveSection = ObjectiveSection()
    """What is predicted in pretraining."""
    mesh: MeshSection = MeshSection()
    """Devices, and how the run is split over them."""
    optimizer: OptimizerSection = OptimizerSection()
    """Of pretraining."""
    loader: LoaderSection = LoaderSection()
    """How batches are made ready."""
    train: TrainSection | None = None
    """The steps of pretraining."""
    finetune: FinetuneSection | None = None
    """How `bert-jax finetune` trains a task."""
    submit: SubmitSection | None = None
    """Where `bert-jax submit` runs the job, and what it may cost."""

    @pydantic.model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.train is not None:
            _refuse_two_limits(self.train, self.objective.masking.max_predictions)
        return self


def _refuse_two_limits(train: TrainSection, masked: int | None) -> None:
    """Refuses two different limits of predictions, of a phase and of the masking."""
    for index, phase in enumerate(train.phases):
        found = phase.max_predictions
        if masked is not None and found not in (None, masked):
            raise ValueError(
                f"train.phases.{index}.max_predictions: found {found} and "
                f"objective.masking.max_predictions {masked}, allowed: one of them"
            )


def load_config(path: epath.PathLike, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a YAML file and applies overrides.

    ``load_config("run.yaml", ["train.phases.0.steps=100", "mesh.tensor=2"])``

    Args:
        path: local or gs://; or one that comes with the package, ``configs/finetune/mrpc.yaml`` or
            ``finetune/mrpc``, where no file of that name is here.
        overrides: ``dotted.key=value``, the value in YAML; a number in the key indexes a list.

    Raises:
        UserError: no such file, not YAML, an unknown key, a value of the wrong type, an override
            without ``=``.
    """
    packaged = find_packaged(path)
    if packaged is None and not is_remote(path) and not epath.Path(path).is_file():
        _refuse_place(epath.Path(path))
    values = read_yaml(path) if packaged is None else parse_yaml(packaged, str(path))
    return parse_config(values, overrides, source=str(path))


def as_config(config: RunConfig | epath.PathLike) -> RunConfig:
    """Returns a configuration as it is, or read from the path of its file.

    Raises:
        UserError: an object of another type, or any error of `load_config`.
    """
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, str | os.PathLike):
        return load_config(config)
    raise UserError(
        f"config: found {type(config).__name__}, allowed: a RunConfig (load_config, parse_config) "
        f"or the path of a file"
    )


def _refuse_place(path: epath.Path) -> None:
    """Raises UserError for a directory and for a name that is not there, with what to type."""
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir() if file.suffix == _SUFFIX)
        name = _RUN_CONFIG if _RUN_CONFIG in files else next(iter(files), "")
        near = f'; did you mean "{path / name}"?' if name else ""
        raise UserError(f"{path}: found a directory, allowed: a configuration file{near}")
    if not path.exists():
        folder = path.parent
        there = [file.name for file in folder.glob(f"*{_SUFFIX}")] if folder.is_dir() else []
        packaged = [name for name in packaged_configs() if not name.startswith(_NEW)]
        near = did_you_mean(path.name, there) or did_you_mean(_packaged_name(path), packaged)
        near = near or "; `bert-jax new` writes one to begin with"
        raise UserError(f"{path}: no such file{near}")


def _packaged_name(path: epath.PathLike) -> str:
    return str(path).removeprefix("configs/").removesuffix(_SUFFIX)


def packaged_configs() -> list[str]:
    """Returns the names of the configurations that come with the package: ``finetune/mrpc``."""
    root = importlib.resources.files(_CONFIGS)
    return sorted(
        f"{folder.name}/{file.name.removesuffix(_SUFFIX)}"
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    )


def read_packaged(name: str) -> str:
    """Returns the text of a configuration of the package, by its name of `packaged_configs`."""
    root = importlib.resources.files(_CONFIGS)
    return root.joinpath(f"{name}{_SUFFIX}").read_text(encoding="utf-8")


def find_packaged(path: epath.PathLike) -> str | None:
    """Returns the text of a configuration of the package, None if a path is not one.

    A file of that name comes first: None.
    """
    if is_remote(path) or epath.Path(path).exists():
        return None
    name = _packaged_name(path)
    return read_packaged(name) if name in packaged_configs() else None


def parse_config(
    values: Any, overrides: Sequence[str] = (), *, source: str = "configuration"
) -> RunConfig:
    """Returns the configuration that nested values and overrides describe.

    Args:
        values: what the YAML file holds.
        overrides: see `load_config`.
        source: the file's name, for messages. A mistake in what an override sets names that.

    Raises:
        UserError: as `load_config`.
    """
    if values is None:
        values = {}
    changed = copy.deepcopy(values)
    if isinstance(changed, dict):
        for override in overrides:
            _override(changed, override)
    try:
        return validate(RunConfig, changed, source=source)
    except InvalidValue as error:
        mistaken = _missing_part(values, error.key)
        for override in overrides:
            key = override.partition("=")[0]
            if f"{error.key}.".startswith(f"{key}.") or f"{key}.".startswith(f"{mistaken}."):
                raise UserError(f"override {error.key}: {error.problem}") from error
        raise


def _missing_part(values: Any, key: str) -> str | None:
    """Returns the shortest beginning of a dotted key that values lack, None if they have it all."""
    parts = key.split(".")
    for count, part in enumerate(parts, start=1):
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        elif isinstance(values, dict) and values.get(part) is not None:
            values = values[part]
        else:
            return ".".join(parts[:count])
    return None


def dump_config(config: RunConfig) -> str:
    """Returns the configuration as YAML with every setting spelled out."""
    return dump_yaml(config.model_dump(mode="json"))


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        absent = 'no key before "="' if equals else 'no "="'
        raise UserError(f'"{override}": found {absent}, allowed: key=value, such as mesh.tensor=2')
    *parents, last = parts = key.split(".")
    if len(parents) > MAX_DEPTH:
        raise UserError(f'"{override:.60}…": found {len(parents)} dots, allowed: {MAX_DEPTH}')
    node: Any = values
    for depth, part in enumerate(parents):
        node = _child(node, part, override, above=".".join(parts[:depth]))
    value = parse_yaml(text, f"{override:.200}")
    node[_place(node, last, override, above=".".join(parents))] = value


def _child(node: Any, part: str, override: str, *, above: str) -> Any:
    place = _place(node, part, override, above=above)
    if isinstance(node, dict) and node.get(place) is None:
        node[place] = {}
    child = node[place]
    if not isinstance(child, dict | list):
        raise UserError(f'"{override}": {part} is {shown(child)} and has no keys below it')
    return child


def _place(node: dict[str, Any] | list[Any], part: str, override: str, *, above: str) -> str | int:
    """Returns the key of a mapping, or the index in a list, that part of a dotted key says.

    `above` is the dotted key of the node.
    """
    if isinstance(node, dict):
        return part
    indices = {str(index): index for index in range(len(node))}
    if part not in indices:
        last = len(node) - 1
        allowed = f"0 to {last}" if last > 0 else "0" if node else "none"
        raise UserError(
            f'"{override}": found "{part}", allowed: {allowed}; {above} has '
            f"{counted(len(node), 'item')}, counted from 0"
        )
    return indices[part]
