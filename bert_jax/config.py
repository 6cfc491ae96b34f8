"""RunConfig: the sections that each package owns, from YAML and ``key=value`` overrides."""

import importlib.resources
from collections.abc import Sequence
from typing import Any, Final

import pydantic
from etils import epath

from bert_jax.data.loader.section import LoaderSection
from bert_jax.errors import UserError, did_you_mean
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
    values = read_yaml(path) if packaged is None else parse_yaml(packaged, str(path))
    return parse_config(values, overrides, source=str(path))


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

    Raises:
        UserError: no such file, but the name of one of the package is near.
    """
    if is_remote(path) or epath.Path(path).exists():
        return None
    name = str(path).removeprefix("configs/").removesuffix(_SUFFIX)
    known = packaged_configs()
    if name in known:
        return read_packaged(name)
    if near := did_you_mean(name, known):
        raise UserError(f"{path}: no such file, and no configuration of the package{near}")
    return None


def parse_config(values: Any, overrides: Sequence[str] = (), *, source: str) -> RunConfig:
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
    if isinstance(values, dict):
        for override in overrides:
            _override(values, override)
    try:
        return validate(RunConfig, values, source=source)
    except InvalidValue as error:
        given = (override.partition("=")[0] for override in overrides)
        if any(f"{error.key}.".startswith(f"{key}.") for key in given):
            raise UserError(f"override {error.key}: {error.problem}") from error
        raise


def dump_config(config: RunConfig) -> str:
    """Returns the configuration as YAML with every setting spelled out."""
    return dump_yaml(config.model_dump(mode="json"))


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        absent = 'no key before "="' if equals else 'no "="'
        raise UserError(f'"{override}": found {absent}, allowed: key=value, such as mesh.tensor=2')
    *parents, last = key.split(".")
    if len(parents) > MAX_DEPTH:
        raise UserError(f'"{override:.60}…": found {len(parents)} dots, allowed: {MAX_DEPTH}')
    node: Any = values
    for part in parents:
        node = _child(node, part, override)
    value = parse_yaml(text, f"{override:.200}")
    node[_place(node, last, override)] = value


def _child(node: Any, part: str, override: str) -> Any:
    place = _place(node, part, override)
    if isinstance(node, dict) and node.get(place) is None:
        node[place] = {}
    child = node[place]
    if not isinstance(child, dict | list):
        raise UserError(f'"{override}": {part} is {shown(child)} and has no keys below it')
    return child


def _place(node: dict[str, Any] | list[Any], part: str, override: str) -> Any:
    """Returns the key of a mapping, or the index in a list, that part of a dotted key says."""
    if isinstance(node, dict):
        return part
    indices = {str(index): index for index in range(len(node))}
    if part not in indices:
        allowed = f"0 to {len(node) - 1}" if node else "none, the list is empty"
        raise UserError(f'"{override}": found "{part}", allowed: {allowed}')
    return indices[part]
