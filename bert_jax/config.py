"""The configuration of a job, read from YAML and ``key=value`` overrides."""

import copy
import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import pydantic
from etils import epath

from bert_jax.corpus.section import ScoreSection
from bert_jax.data.loader.section import LoaderSection
from bert_jax.encoders.registry import AnyModelSection
from bert_jax.errors import SettingError, UserError, counted, did_you_mean
from bert_jax.files.read import MAX_DEPTH, no_such_file, shown
from bert_jax.files.remote import is_remote
from bert_jax.files.yaml_file import dump_yaml, parse_yaml, read_yaml
from bert_jax.launch.section import SubmitSection
from bert_jax.objectives.registry import DEFAULT, AnyObjectiveSection, masking_of
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.pipelines.examples import ExamplesSection
from bert_jax.pipelines.vocabulary.train import VocabSection
from bert_jax.section import PathText, Section, refuse_ignored
from bert_jax.tasks.section import FinetuneSection
from bert_jax.validation import InvalidValue, validate
from bert_jax.workflows.pretraining_settings import TrainSection

_CONFIGS: Final = "bert_jax.configs"
_SUFFIX: Final = ".yaml"
NEW: Final = "new/"
"""Folder of the configurations that `bert-jax new` copies."""
_RUN_CONFIG: Final = "config.yaml"  # in a run directory


class RunConfig(Section):
    """The configuration of a whole job, from text to a run. Each verb reads its own sections."""

    seed: int = pydantic.Field(default=0, ge=0)
    """Seed of all random numbers: parameters, dropout, masks, order of the examples."""
    run_dir: PathText | None = None
    """Directory of the run, local or ``gs://``. If it contains a run, that run is resumed."""
    tokenizer: PathText | None = None
    """Directory of the tokenizer: output of `bert-jax vocab`, or a Hugging Face directory with
    `vocab.txt` or `tokenizer.json`."""
    vocab: VocabSection | None = None
    """How `bert-jax vocab` trains a tokenizer, or extends a checkpoint's vocabulary."""
    examples: ExamplesSection | None = None
    """How `bert-jax examples` makes a dataset."""
    model: AnyModelSection | None = None
    """The model to pretrain. `finetune` uses the model of `finetune.init_from` instead."""
    objective: AnyObjectiveSection = DEFAULT
    """The objective of pretraining; `kind` selects it. Default: `bert`."""
    mesh: MeshSection = MeshSection()
    """The devices, and how arrays are sharded over them."""
    optimizer: OptimizerSection = OptimizerSection()
    """The optimizer of pretraining."""
    loader: LoaderSection = LoaderSection()
    """How batches are prepared."""
    train: TrainSection | None = None
    """The steps of pretraining."""
    finetune: FinetuneSection | None = None
    """How `bert-jax finetune` trains a task."""
    score: ScoreSection | None = None
    """How `bert-jax score` runs a model over a corpus."""
    submit: SubmitSection | None = None
    """Where `bert-jax submit` runs the job, and what it may cost."""

    @pydantic.model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        for index, phase in enumerate(self.train.phases if self.train else ()):
            found = phase.max_predictions
            masking = masking_of(phase.objective or self.objective)
            if masking is None:
                try:
                    refuse_ignored(phase, "max_predictions", allowed="an objective with masks")
                except SettingError as error:
                    raise error.with_place(f"train.phases.{index}.max_predictions") from None
                continue
            masked = masking.max_predictions
            setting = "objective" if phase.objective is None else f"train.phases.{index}.objective"
            if masked is not None and found not in (None, masked):
                raise SettingError(
                    "config.max_predictions",
                    f"found {found}, but {setting}.masking has {masked}. Set only one of them.",
                    place=f"train.phases.{index}.max_predictions",
                )
        return self


AnyConfig: TypeAlias = RunConfig | Mapping[str, Any] | epath.PathLike
"""A configuration, its nested values as in YAML, or its file."""

Overrides: TypeAlias = Sequence[str] | Mapping[str, Any]
"""Settings that replace others: ``["mesh.tensor=2"]`` or ``{"mesh.tensor": 2}``."""


def load_config(path: epath.PathLike, overrides: Overrides = ()) -> RunConfig:
    """Reads a YAML file and applies overrides.

    ``load_config("run.yaml", ["train.phases.0.steps=100", "mesh.tensor=2"])``

    Args:
        path: local or ``gs://`` path. If no such file exists, it is the name of a packaged
            configuration: ``configs/finetune/mrpc.yaml`` or ``finetune/mrpc``.
        overrides: settings ``dotted.key=value`` with a YAML value, or a dict of values by dotted
            key. A number in the key is a list index.

    Raises:
        UserError: The file is missing or not YAML, a setting is unknown or wrong, or an override
            has no ``=``.
    """
    file, name = epath.Path(path), _packaged_name(path)
    if not is_remote(path) and not file.exists() and name in packaged_configs():
        values = parse_yaml(read_packaged(name), str(path))
    else:
        if not is_remote(path) and not file.is_file():
            _refuse_place(file)
        values = read_yaml(path)
    return parse_config(values, overrides, source=str(path))


def as_config(config: AnyConfig, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Returns a configuration from any of its forms, with overrides by dotted key.

    ``as_config("run.yaml", {"seed": 3, "mesh.tensor": 2})``. Raises UserError like `load_config`.
    """
    if isinstance(config, RunConfig):
        if not overrides:
            return config
        config = config.model_dump(mode="json")
    if isinstance(config, Mapping):
        return parse_config(config, overrides or ())
    return load_config(config, overrides or ())


def _refuse_place(path: epath.Path) -> None:
    """Raises UserError for a directory or a missing file. Suggests a similar name."""
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir() if file.suffix == _SUFFIX)
        name = _RUN_CONFIG if _RUN_CONFIG in files else next(iter(files), "")
        near = f'; did you mean "{path / name}"?' if name else ""
        raise UserError.wrong(
            "config.directory", "a directory", f"a configuration file{near}", place=path
        )
    if not path.exists():
        folder = path.parent
        there = [file.name for file in folder.glob(f"*{_SUFFIX}")] if folder.is_dir() else []
        packaged = [name for name in packaged_configs() if not name.startswith(NEW)]
        near = did_you_mean(path.name, there) or did_you_mean(_packaged_name(path), packaged)
        near = near or "; `bert-jax new` writes a first configuration"
        raise no_such_file(path, hint=near)


def _packaged_name(path: epath.PathLike) -> str:
    return str(path).removeprefix("configs/").removesuffix(_SUFFIX)


def packaged_configs() -> list[str]:
    """Returns the names of the packaged configurations, such as ``finetune/mrpc``."""
    root = importlib.resources.files(_CONFIGS)
    return sorted(
        f"{folder.name}/{file.name.removesuffix(_SUFFIX)}"
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    )


def read_packaged(name: str) -> str:
    """Returns the text of a packaged configuration; see `packaged_configs` for the names."""
    root = importlib.resources.files(_CONFIGS)
    return root.joinpath(f"{name}{_SUFFIX}").read_text(encoding="utf-8")


def parse_config(
    values: Any, overrides: Overrides = (), *, source: str = "configuration"
) -> RunConfig:
    """Returns a configuration from nested values and overrides.

    Args:
        values: content of the YAML file.
        overrides: see `load_config`.
        source: name of the file in messages. A message about a wrong override names the override.

    Raises:
        UserError: A setting is unknown or wrong, or an override has no ``=``.
    """
    values = {} if values is None else values
    changed, keys = values, []
    if overrides and isinstance(values, Mapping):
        changed = copy.deepcopy(dict(values))
        for override in _parsed(overrides):
            keys.append(override.key)
            _override(changed, override)
    try:
        return validate(RunConfig, changed, source=source)
    except InvalidValue as error:
        setting = error.setting
        mistaken = _missing_part(values, setting)
        for key in keys:
            if f"{setting}.".startswith(f"{key}.") or f"{key}.".startswith(f"{mistaken}."):
                raise error.with_place(f"override {setting}") from error
        raise


def _missing_part(values: Any, key: str) -> str | None:
    """Returns the shortest prefix of a dotted key that is missing in values.

    ``_missing_part({"mesh": {}}, "mesh.tensor") -> "mesh.tensor"``. None if the key exists.
    """
    parts = key.split(".")
    for count, part in enumerate(parts, start=1):
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        elif isinstance(values, dict) and values.get(part) is not None:
            values = values[part]
        else:
            return ".".join(parts[:count])
    return None


def require_training(config: RunConfig, key: Literal["train", "finetune"], *, verb: str) -> None:
    """Raises UserError if a configuration is for the other kind of training than a verb's.

    `key` is the section that the verb needs.
    """
    other, fitting = ("finetune", "finetune") if key == "train" else ("train", "pretrain")
    if getattr(config, key) is None and getattr(config, other) is not None:
        raise UserError(
            "config.other_verb",
            f"missing, but `bert-jax {verb}` needs it. This configuration has the section "
            f"{other}: use `bert-jax "
            f"{f'submit --verb {fitting}' if verb == 'submit' else fitting}`.",
            place=key,
        )


def dump_config(config: RunConfig) -> str:
    """Returns the configuration as YAML with every setting, defaults included."""
    return dump_yaml(config.model_dump(mode="json"))


class _Override(NamedTuple):
    key: str
    value: Any
    text: str  # as the user spelled it


def _parsed(overrides: Overrides) -> Iterator[_Override]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            yield _Override(key, copy.deepcopy(value), key)
        return
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            found = 'no key before "="' if equals else 'no "="'
            raise UserError.wrong(
                "override.form", found, "key=value, such as mesh.tensor=2", place=f'"{text}"'
            )
        yield _Override(key, parse_yaml(value, f"{text:.200}"), text)


def _override(values: dict[str, Any], override: _Override) -> None:
    *parents, last = parts = override.key.split(".")
    if len(parents) > MAX_DEPTH:
        raise UserError.wrong(
            "override.depth", f"{len(parents)} dots", MAX_DEPTH, place=f'"{override.text:.60}…"'
        )
    node: Any = values
    for depth, part in enumerate(parents):
        place = _place(node, part, override.text, above=".".join(parts[:depth]))
        if isinstance(node, dict) and node.get(place) is None:
            node[place] = {}
        if not isinstance(node[place], dict | list):
            raise UserError(
                "override.below_value",
                f"{part} is {shown(node[place])}, which has no keys below it",
                place=f'"{override.text}"',
            )
        node = node[place]
    node[_place(node, last, override.text, above=".".join(parents))] = override.value


def _place(node: dict[str, Any] | list[Any], part: str, override: str, *, above: str) -> str | int:
    """Returns the mapping key or list index that a part of a dotted key refers to."""
    if isinstance(node, dict):
        return part
    if part not in map(str, range(len(node))):
        last = len(node) - 1
        allowed = f"0 to {last}" if last > 0 else "0" if node else "none"
        raise UserError(
            "override.index",
            f'found "{part}", allowed: {allowed}. {above} has {counted(len(node), "item")}.',
            place=f'"{override}"',
        )
    return int(part)
