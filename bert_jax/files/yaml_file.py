"""Reads and writes YAML with the types of JSON. 1e-4 is a number."""

import re
from collections.abc import Hashable
from typing import Any, ClassVar, Final

import yaml
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import MAX_DEPTH, MAX_DIGITS, read_text, shown

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML without libyaml is seven times slower
    from yaml import SafeLoader as _SafeLoader

MAX_BYTES: Final = 1 << 20  # limit for YAML files; a configuration has about 1 KiB

MAX_EVENTS: Final = 100_000
"""Maximum number of parser events. Parsing them takes a few seconds. A plain value is one event; a
list or mapping adds two."""

# Messages of libyaml about wrong indentation.
_INDENTATION: Final = (
    "found character that cannot start any token",
    "did not find expected key",
    "did not find expected '-' indicator",
    "mapping values are not allowed in this context",
)

_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
# Numbers that YAML 1.1 reads in base 8 or 60: 010 is 8, and 1:30 is 90.
_SURPRISING: Final = re.compile(r"[-+]?0[0-9_]+|.*:.*")
_PLAIN: Final = (_INT, _FLOAT, "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null")


def read_yaml(path: epath.PathLike) -> Any:
    """Returns the values in a YAML file, local or ``gs://``. Raises UserError like `parse_yaml`."""
    return parse_yaml(read_text(epath.Path(path), limit=MAX_BYTES), str(path))


class _Loader(_SafeLoader):  # pyright: ignore[reportGeneralTypeIssues] (one of two classes)
    """Loads YAML 1.1 with the types of JSON only.

    Keys are text, so ``no:`` is the key "no". Dates are text. 1e-4 is a number, although YAML 1.1
    defines it as text.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Returns a dict. Raises UserError if a key is not text or is repeated."""
        mapping: dict[Hashable, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise UserError("yaml.key", "found a key that is not text", place=_line(key))
            if key.value in mapping:
                raise UserError.wrong(
                    "yaml.key_twice", f"the key {shown(key.value)} twice", "once", place=_line(key)
                )
            mapping[key.value] = self.construct_object(value, deep=deep)
        return mapping

    def construct_number(self, node: Any) -> int | float:
        """Returns a number. Raises UserError if it has too many digits or is malformed."""
        if len(node.value) > MAX_DIGITS:
            raise UserError(
                "yaml.digits",
                f"found a number with more than {MAX_DIGITS} digits, the limit",
                place=_line(node),
            )
        if _SURPRISING.fullmatch(node.value):
            raise UserError(
                "yaml.number",
                f"found {node.value}, which YAML reads as {self._number(node)}. Quote a text.",
                place=_line(node),
            )
        return self._number(node)

    def _number(self, node: Any) -> int | float:
        try:
            make = self.construct_yaml_int if node.tag == _INT else self.construct_yaml_float
            return make(node)
        except ValueError:  # such as 0b_
            raise UserError.wrong(
                "yaml.number", shown(node.value), "a number", place=_line(node)
            ) from None


_EXPONENT: Final = (
    _FLOAT,
    re.compile(r"^[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(*_EXPONENT)
_Loader.add_constructor(_INT, _Loader.construct_number)
_Loader.add_constructor(_FLOAT, _Loader.construct_number)


def _check_events(text: str) -> None:
    """Raises UserError for tags, aliases, and excessive depth or length.

    Tags could construct arbitrary types. Nested aliases can expand a few lines to gigabytes.
    """
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_SafeLoader)):
        if count == MAX_EVENTS:
            raise UserError(
                "yaml.values",
                f"found more than {MAX_EVENTS:,} values, the limit",
                place=_line(event),
            )
        if isinstance(event, yaml.AliasEvent):
            raise UserError(
                "yaml.alias",
                f"found the alias *{event.anchor}. Write its values instead.",
                place=_line(event),
            )
        if getattr(event, "tag", None) is not None:
            raise UserError.wrong(
                "yaml.tag", f"the tag {event.tag}", "plain values", place=_line(event)
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise UserError(
                    "yaml.depth", f"nested deeper than the limit of {MAX_DEPTH}", place=_line(event)
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(found: Any) -> str:
    """Returns the line number of a YAML node or event, for an error."""
    return f"line {found.start_mark.line + 1}"


def parse_yaml(text: str, source: str) -> Any:
    """Returns the values of a YAML document. ``source`` names the file in messages.

    Raises UserError with the line if the text is not YAML, has a tag, an alias or a repeated key,
    or exceeds the limits of depth and digits.
    """
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}: line {mark.line + 1}" if mark else source
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        if mark and text.splitlines()[mark.line : mark.line + 1] and reason in _INDENTATION:
            tab = "\t" in text.splitlines()[mark.line]
            reason += "; indent with spaces, not tabs" if tab else "; check the indentation"
        raise _not_yaml(place, reason) from error
    except UserError as error:
        raise error.located(source) from None
    except (ValueError, OverflowError) as error:  # an escape outside of Unicode
        raise _not_yaml(source, str(error)) from error


def _not_yaml(place: str, reason: str) -> UserError:
    """Returns the error for a text that is not YAML."""
    return UserError("yaml.invalid", f"not YAML ({reason})", place=place)


class _Dumper(yaml.SafeDumper):
    """Writes YAML for `parse_yaml`, without aliases: a shared list is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Disables aliases."""
        return True


_Dumper.add_implicit_resolver(*_EXPONENT)  # quotes the text "1e4"


def dump_yaml(values: Any) -> str:
    """Returns plain values as YAML. Keeps the order of the keys."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
