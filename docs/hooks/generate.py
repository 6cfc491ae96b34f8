"""Generates pages of the site: settings, command line, Python, notebooks, decisions."""

import functools
import inspect
import json
import logging
import re
import sys
import types
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import griffe
import pydantic
import pydantic_core
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import bert_jax
from bert_jax.cli.commands import cli
from bert_jax.config import RunConfig
from bert_jax.section import Section

# The build is strict: what is logged here as a warning ends it.
_log = logging.getLogger("mkdocs.hooks.generate")
_ADR = Path(__file__).parent.parent / "adr"
_NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


# Pages that the search lists after the guides.
_INTERNAL = re.compile(r"reference/(?!settings|commands)|results/|architecture|glossary|tour")


def on_config(config: MkDocsConfig) -> None:
    """Adds the pages of settings to the navigation."""
    reference = next(part["Reference"] for part in config.nav or () if "Reference" in part)
    pages = [{name: f"reference/settings/{name}.md"} for name in _by_page()]
    reference.insert(0, {"Settings": [{"All sections": "reference/settings/index.md"}, *pages]})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    pages = {
        "settings/index": "".join(_all_settings()),
        **{f"settings/{name}": "".join(_settings(name)) for name in _by_page()},
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


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Ranks guides before internal pages in the search."""
    path = page.file.src_uri
    boost = 0.5 if _INTERNAL.match(path) else 2
    # The page of decisions contains these.
    page.meta["search"] = {"boost": boost, "exclude": path.startswith("adr/")}
    return markdown


def _notebook(path: Path) -> str:
    """Returns a notebook as a page, with a link to the notebook."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    parts.insert(1, f"[Download the notebook]({path.name})")
    return "\n\n".join(parts)


class _Place(NamedTuple):
    """Where a section is described. A section with several keys is described at the first."""

    key: str  # "train.phases"
    kind: str  # the only encoder, objective or task that has it, or ""

    @property
    def page(self) -> str:
        return self.key.partition(".")[0]

    @property
    def anchor(self) -> str:
        return f"{self.key}.{self.kind}" if self.kind else self.key

    @property
    def title(self) -> str:
        return f"`{self.key}`" + (f" (`{self.kind}`)" if self.kind else "")


@functools.cache
def _places() -> dict[type[Section], _Place]:
    found: dict[type[Section], list[_Place]] = {}

    def visit(section: type[Section], key: str, kind: str) -> None:
        for name, field in section.model_fields.items():
            nested = list(_sections(field.annotation))
            for each in nested:
                of = _kind(each) if len(nested) > 1 else kind
                found.setdefault(each, []).append(_Place(f"{key}{name}", of))
                visit(each, f"{key}{name}.", of)

    visit(RunConfig, "", "")
    places = {
        section: first
        if len({place.kind for place in (first, *more)}) == 1
        else _Place(first.key, "")
        for section, (first, *more) in found.items()
    }
    for place, number in Counter(places.values()).items():
        if number > 1:
            _log.warning("%s: %d sections have this heading", place.title, number)
    return places


def _by_page() -> dict[str, list[type[Section]]]:
    """Returns the sections of each page of settings, in order."""
    pages: dict[str, list[type[Section]]] = {}
    for section, place in _places().items():
        pages.setdefault(place.page, []).append(section)
    return pages


def _all_settings() -> Iterator[str]:
    yield (
        "# Settings\n\nEvery key of a configuration, with its default. `bert-jax VERB run.yaml "
        "KEY=VALUE` sets one on the command line. A verb reads only its own sections. "
        "**required** marks a key without default.\n"
    )
    yield from _table(RunConfig, key="")


def _settings(page: str) -> Iterator[str]:
    yield f"# Settings of `{page}`\n"
    for section in _by_page()[page]:
        place = _places()[section]
        own = inspect.cleandoc(section.__doc__ or "")  # `getdoc` would inherit one
        summary = _cell(own.split("\nAttributes:")[0], lines=True)
        yield f"\n## {place.title} {{ #{place.anchor} }}\n\n{summary}\n"
        yield from _table(section, key=f"{place.key}.")


def _table(section: type[Section], *, key: str) -> Iterator[str]:
    meanings = _meanings(section)
    yield "\n| Key | Type | Default | |\n|---|---|---|---|\n"
    for name, field in section.model_fields.items():
        if not (meaning := meanings.get(name, "")):
            _log.warning("%s.%s has no description", section.__name__, name)
        yield f"| `{key}{name}` | {_type(field)} | {_default(field)} | {_cell(meaning)} |\n"


def _kind(section: type[Section]) -> str:
    return section.model_fields["kind"].default if "kind" in section.model_fields else ""


def _link(section: type[Section], *, alone: bool) -> str:
    place = _places()[section]
    text = "section" if alone else f"`{_kind(section)}`"
    return f"[{text}]({place.page}.md#{place.anchor})"


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
        sections = list(_sections(annotation))
        links = ", ".join(_link(each, alone=len(sections) == 1) for each in sections)
        others = [_spell(kind) for kind in arguments if not list(_sections(kind))]
        null = ", or null" if type(None) in arguments else ""
        return " or ".join(filter(None, [links, *others])) + null
    if origin in (tuple, list):
        return f"list of {_spell(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _link(annotation, alone=True)
    names = {
        type(None): "",
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
    }
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
    return "# Python\n\n" + "".join(
        f"::: {thing.__module__}.{thing.__qualname__}\n"
        f"    options: {{heading: bert_jax.{thing.__name__}, toc_label: {thing.__name__}}}\n\n"
        for thing in (*functions, *classes)
    )


def _decisions() -> str:
    """Returns one page of all decisions."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(_ADR.glob("*.md"))]
    return "# Decisions\n\n" + "\n\n".join(
        re.sub(r"^#", "##", page, flags=re.MULTILINE) for page in pages
    )
