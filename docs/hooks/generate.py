"""Generates pages of the site: settings, command line, Python, notebooks, decisions."""

import functools
import inspect
import json
import logging
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import griffe
import pydantic
import pydantic_core
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import bert_jax
from bert_jax.cli.commands import cli
from bert_jax.config import RunConfig
from bert_jax.section import Section

# The build is strict: what is logged here as a warning ends it.
_log = logging.getLogger("mkdocs.hooks.generate")
_ADR = Path(__file__).parent.parent / "adr"
_NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    pages = {
        "settings": "".join(_settings()),
        "commands": "".join(_commands()),
        "python": _python(),
        "decisions": _decisions(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in sorted(_NOTEBOOKS.glob("*.ipynb")):
        content = _notebook(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    return files


def _notebook(path: Path) -> str:
    """Returns a notebook as a page, with a link to the notebook."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    parts.insert(1, f"[Download the notebook]({path.name})")
    return "\n\n".join(parts)


def _settings() -> Iterator[str]:
    yield (
        "# Settings\n\nEvery key of a configuration, with its default. `bert-jax VERB run.yaml "
        "KEY=VALUE` sets one on the command line. A verb reads only its own sections. "
        "**required** marks a key without default.\n"
    )
    yield from _section(RunConfig, key="", title="The top level")


def _section(section: type[Section], *, key: str, title: str) -> Iterator[str]:
    meanings = _meanings(section)
    summary = _cell((inspect.getdoc(section) or "").split("\nAttributes:")[0], lines=True)
    yield f"\n## {title}\n\n{summary}\n\n| Key | Type | Default | |\n|---|---|---|---|\n"
    below: list[tuple[type[Section], str, str]] = []
    for name, field in section.model_fields.items():
        if not (meaning := meanings.get(name, "")):
            _log.warning("%s.%s has no description", section.__name__, name)
        sections = list(_sections(field.annotation))
        for nested in sections:
            path = f"{key}{name}"
            kind = nested.model_fields.get("kind")
            several = f": {kind.default}" if kind is not None and len(sections) > 1 else ""
            below.append((nested, f"{path}.", f"`{path}`{several}"))
        yield f"| `{key}{name}` | {_type(field)} | {_default(field)} | {_cell(meaning)} |\n"
    for nested, path, heading in below:
        yield from _section(nested, key=path, title=heading)


def _meanings(section: type[Section]) -> dict[str, str]:
    """Returns the text of each key: its docstring, or its entry under ``Attributes:``."""
    found: dict[str, str] = {}
    # A class of changes has no source: it is generated from the class of an architecture at import.
    source = section.__name__.removesuffix("Changes")
    section = getattr(sys.modules[section.__module__], source)
    for owner in reversed(section.__mro__):
        if not issubclass(owner, Section) or owner is Section:
            continue
        parsed = _module(owner.__module__)[owner.__name__]
        assert isinstance(parsed, griffe.Class)
        for part in parsed.docstring.parsed if parsed.docstring else ():
            if isinstance(part, griffe.DocstringSectionAttributes):
                found |= {entry.name: entry.description for entry in part.value}
        for member, attribute in parsed.attributes.items():
            if attribute.docstring is not None:
                found[member] = attribute.docstring.value
    return found


@functools.cache
def _module(name: str) -> griffe.Module:
    """Parses the source of a module, without the modules that it imports."""
    source = Path(inspect.getsourcefile(sys.modules[name]) or "")
    text = source.read_text(encoding="utf-8")
    return griffe.visit(name, source, text, docstring_parser=griffe.Parser.google)


def _sections(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _sections(argument)


def _type(field: pydantic.fields.FieldInfo) -> str:
    limits = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if hasattr(rule, name)
    ]
    return ", ".join([_spell(field.annotation), *limits])


def _spell(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is typing.Annotated:
        return _spell(arguments[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in arguments if kind is not type(None)]
        if all(isinstance(kind, type) and issubclass(kind, Section) for kind in kinds):
            return "section, or null" if len(kinds) < len(arguments) else "section"
        return " or ".join(map(_spell, kinds)) + ("" if kinds == [*arguments] else ", or null")
    if origin in (tuple, list):
        return f"list of {_spell(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: pydantic.fields.FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is pydantic_core.PydanticUndefined:
        return "**required**"
    if isinstance(default, pydantic.BaseModel):
        return ""
    spelled = {None: "null", True: "true", False: "false", (): "[]"}
    if isinstance(default, bool | tuple | None) and default in spelled:
        return f"`{spelled[default]}`"
    return f"`{list(default) if isinstance(default, tuple) else default}`"


def _cell(text: str, *, lines: bool = False) -> str:
    """Returns a docstring as Markdown, for a cell of a table in one line."""
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", text.strip()).replace("``", "`")
    if lines:
        return text
    text = " ".join(text.split()).replace("|", "\\|")
    return text[:1].upper() + text[1:]


def _commands() -> Iterator[str]:
    yield "# Command line\n\n    bert-jax VERB CONFIG.yaml [KEY=VALUE …]\n"
    for name, command in sorted(cli.commands.items()):
        context = click.Context(command, info_name=f"bert-jax {name}", max_content_width=100)
        yield f"\n## {name}\n\n```text\n{command.get_help(context)}\n```\n"


def _python() -> str:
    exported = [getattr(bert_jax, name) for name in bert_jax.__all__ if name != "__version__"]
    # Sections are on the page of settings.
    shown = [
        thing
        for thing in exported
        if not (inspect.isclass(thing) and issubclass(thing, pydantic.BaseModel))
        or thing is RunConfig
    ]
    functions = [thing for thing in shown if not inspect.isclass(thing)]
    classes = [thing for thing in shown if inspect.isclass(thing)]
    names = [f"{thing.__module__}.{thing.__qualname__}" for thing in (*functions, *classes)]
    return "# Python\n\n" + "".join(f"::: {name}\n\n" for name in names)


def _decisions() -> str:
    """Returns one page of all decisions."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(_ADR.glob("*.md"))]
    return "# Decisions\n\n" + "\n\n".join(
        re.sub(r"^#", "##", page, flags=re.MULTILINE) for page in pages
    )
