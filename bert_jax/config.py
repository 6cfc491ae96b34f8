"""RunConfig: the sections that each package owns, from YAML and ``key=value`` overrides."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, get_args

import pydantic
import yaml
from etils import epath

from bert_jax.data.loader_section import LoaderSection
from bert_jax.errors import UserError, did_you_mean
from bert_jax.finetune.section import FinetuneSection
from bert_jax.model.config import ModelSection
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.section import Section
from bert_jax.train.sections import TrainSection
from pipelines.examples import ExamplesSection
from pipelines.vocab import VocabSection

T = TypeVar("T")

# The key that tells sections of several kinds apart.
KIND: Final = "kind"


class RunConfig(Section):
    """A whole job: text → tokenizer → dataset → run. Each verb needs only its own sections."""

    seed: int = pydantic.Field(default=0, ge=0)
    run_dir: str | None = None
    tokenizer: str | None = None
    vocab: VocabSection | None = None
    examples: ExamplesSection | None = None
    model: ModelSection | None = None
    objective: ObjectiveSection = ObjectiveSection()
    mesh: MeshSection = MeshSection()
    optimizer: OptimizerSection = OptimizerSection()
    loader: LoaderSection = LoaderSection()
    train: TrainSection | None = None
    finetune: FinetuneSection | None = None


def load_config(path: epath.PathLike, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a YAML file and applies overrides.

    ``load_config("run.yaml", ["train.phases.0.steps=100", "mesh.tensor=2"])``

    Args:
        path: local or gs://.
        overrides: ``dotted.key=value``, the value in YAML; a number in the key indexes a list.

    Raises:
        UserError: no such file, not YAML, an unknown key, a value of the wrong type, an override
            without ``=``.
    """
    file = epath.Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such configuration file") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: found a directory, expected a YAML file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from error
    return parse_config(_parse_yaml(text, str(path)), overrides, source=str(path))


def parse_config(values: Any, overrides: Sequence[str] = (), *, source: str) -> RunConfig:
    """Returns the configuration that nested values and overrides describe.

    Args:
        values: what the YAML file holds.
        overrides: see `load_config`.
        source: the file's name, for messages.

    Raises:
        UserError: as `load_config`.
    """
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise UserError(f"{source}: found {type(values).__name__}, expected keys and values")
    for override in overrides:
        _override(values, override)
    try:
        # By way of JSON: strict about types, and a list is the only sequence YAML has.
        return RunConfig.model_validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {_first_error(error, values)}") from error
    except TypeError as error:
        raise UserError(f"{source}: {error}; allowed: text, numbers, lists, keys") from error


def dump_config(config: RunConfig) -> str:
    """Returns the configuration as YAML with every setting spelled out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def need(value: T | None, key: str, verb: str) -> T:
    """Returns a setting that a verb cannot do without.

    Raises:
        UserError: it is not set.
    """
    if value is None:
        raise UserError(f"{key}: missing; `bert-jax {verb}` needs it in the configuration")
    return value


@contextlib.contextmanager
def under(key: str, section: type[Section]) -> Iterator[None]:
    """Completes the keys in messages of code that knows its own section only.

    ``with under("examples", ExamplesSection)`` turns ``input: no file x`` into
    ``examples.input: no file x``.
    """
    try:
        yield
    except UserError as error:
        if str(error).partition(":")[0] in section.model_fields:
            raise UserError(f"{key}.{error}") from error
        raise


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-4 for text, since it has no dot. Here it is the number it looks like."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{source}{where}: not YAML ({problem})") from error


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f'"{override}": found no "=", allowed: key=value, such as mesh.tensor=2')
    *parents, last = key.split(".")
    node: Any = values
    for part in parents:
        node = _child(node, part, override)
    value = _parse_yaml(text, override)
    if isinstance(node, list):
        node[_index(node, last, override)] = value
    else:
        node[last] = value


def _child(node: Any, part: str, override: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, override)]
    if node.get(part) is None:
        node[part] = {}
    child = node[part]
    if not isinstance(child, dict | list):
        raise UserError(f'"{override}": {part} is {child!r} and has no keys below it')
    return child


def _index(node: list[Any], part: str, override: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise UserError(f'"{override}": found "{part}", allowed: 0 to {len(node) - 1}')
    return int(part)


def _first_error(error: pydantic.ValidationError, values: Mapping[str, Any]) -> str:
    """Says the first error in one line: key, found, allowed, nearest name."""
    first = error.errors()[0]
    location, sections = _walk(RunConfig, first["loc"])
    key = ".".join(map(str, location))
    context = first.get("ctx", {})
    if first["type"] == "extra_forbidden":
        names = list(dict.fromkeys(name for each in sections for name in each.model_fields))
        near = did_you_mean(str(location[-1]), names)
        return f"{key}: unknown key{near}; allowed: {', '.join(names)}"
    if first["type"] == "missing":
        return f"{key}: missing ({first['msg'].lower()})"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = [each.model_fields[KIND].default for each in sections]
        found = context.get("tag")
        shown = "nothing" if found is None else f'"{found}"'
        return f"{key}.{KIND}: found {shown}, allowed: {', '.join(kinds)}" + (
            "" if found is None else did_you_mean(found, kinds)
        )
    found = first["input"]
    shown = json.dumps(found) if isinstance(found, str | int | float | bool) else repr(found)
    message = str(context["error"]) if "error" in context else first["msg"]
    if first["type"] == "literal_error" and isinstance(found, str):
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"{key}: found {shown}, allowed: {', '.join(allowed)}{did_you_mean(found, allowed)}"
    return f"{key}: found {shown}, {message[:1].lower()}{message[1:]}"


def _walk(
    root: type[pydantic.BaseModel], location: Sequence[str | int]
) -> tuple[list[str | int], list[type[pydantic.BaseModel]]]:
    """Returns a place as its owner wrote it, and the sections that its last key may belong to.

    pydantic puts the kind of a section that is one of several between its key and what is below.
    For a place that is such a section itself, the sections are those it may be.
    """
    key: list[str | int] = []
    sections: list[type[pydantic.BaseModel]] = [root]
    for at, part in enumerate(location):
        kinds = [each for each in sections if _is_kind(each, part)]
        if kinds:
            sections = kinds
            continue
        key.append(part)
        owners = [each for each in sections if isinstance(part, str) and part in each.model_fields]
        if owners:
            below = _sections_of(owners[0].model_fields[str(part)].annotation)
            if at + 1 < len(location) or len(below) > 1:
                sections = below
    return key, sections


def _is_kind(section: type[pydantic.BaseModel], part: str | int) -> bool:
    return KIND in section.model_fields and section.model_fields[KIND].default == part


def _sections_of(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections_of(part)]
