"""Renders pages from Jinja2 templates as self-contained HTML files."""

import base64
import functools
import gzip
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final, NamedTuple, TypeAlias

import jinja2
from markupsafe import Markup

from bert_jax.errors import counted

SHOWN: Final = 25  # maximum number of examples in a list
TEXT_LIMIT: Final = 1000  # maximum number of characters shown of a text

# Characters that HTML forbids even if they are escaped.
CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef]")


class Share(NamedTuple):
    """A table cell with a percentage and an optional bar."""

    value: float  # 0 to 1
    filled: float | None = None  # filled fraction of the bar, 0 to 1; None without a bar

    def __str__(self) -> str:
        return percentage(self.value)


Cell: TypeAlias = str | float | Share  # cell of a table
Record: TypeAlias = Mapping[str, Any]  # example with its label and prediction
View: TypeAlias = dict[str, Any]  # variables of a template; `template` is its name
Spec: TypeAlias = dict[str, Any]  # specification of a chart in Vega-Lite


class Chart(NamedTuple):
    """A chart, as the templates show it."""

    title: str
    label: str  # description for screen readers, also shown without JavaScript
    spec: Spec
    remarks: Sequence[str] = ()


class Table(NamedTuple):
    """A table. Its first column has the names of the rows."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    best: int | None = None  # index of the best row

    @property
    def marks(self) -> list[str]:
        """The CSS class of each row, or ""."""
        return ["best" if at == self.best else "" for at in range(len(self.rows))]


class Part(NamedTuple):
    """A section of a page of ``parts.html``."""

    title: str
    tables: Sequence[Any] = ()  # `Table`s, or other objects with title, headings and rows
    charts: Sequence[Chart] = ()
    is_wide: bool = False  # whether a chart has the whole width of the page
    examples: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()  # texts with named values
    note: str = ""


class Selection(NamedTuple):
    """The first records of a list, and the number of all records."""

    records: Sequence[Record]
    total: int


def select(
    records: Iterable[Record], *, limit: int = SHOWN, largest: Callable[[Record], Any] | None = None
) -> Selection:
    """Returns the first `limit` records. If `largest` is set, sorts by it first, descending."""
    found = list(records)
    if largest is not None:
        found.sort(key=largest, reverse=True)
    return Selection(found[:limit], len(found))


class Contents(dict[str, str]):
    """Table of contents: headings by anchor."""

    def add(self, heading: str) -> str:
        """Adds a section and returns its unique anchor: ``"Dev & test"`` → ``"dev-test"``."""
        base = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"
        names = itertools.chain([base], (f"{base}-{repeat}" for repeat in itertools.count(2)))
        anchor = next(name for name in names if name not in self)
        self[anchor] = heading
        return anchor


def render_page(template: str, *, title: str, **context: Any) -> str:
    """Returns an HTML document: `template` within ``page.html``.

    The content security policy forbids all requests, and all scripts except those with our hashes.
    A script in the user's text could not run even if it were not escaped. `context` has the
    variables of `template`, and `about` (subtitle), `figures` (labels and values) and `footer` for
    ``page.html``.
    """
    contents = Contents()
    main = _environment().get_template(template).render(contents=contents, **context)
    return render_fragment(
        "page.html", title=title, main=Markup(main), contents=contents, assets=_assets(), **context
    )


def render_fragment(template: str, **context: Any) -> str:
    """Returns a rendered template without ``page.html``. U+FFFD replaces forbidden characters."""
    return CONTROLS.sub("\ufffd", _environment().get_template(template).render(**context))


@functools.cache
def _assets() -> dict[str, str]:
    """Returns the style sheet, the script, the security policy, and gzipped Vega in base64."""
    templates = resources.files("bert_jax.report") / "templates"
    script = (templates / "charts.js").read_text()
    packed = (templates / "vega.js.gz").read_bytes()
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(each).digest()).decode()}'"
        for each in (script.encode(), gzip.decompress(packed))
    )
    return {
        "style": Markup((templates / "style.css").read_text()),
        "script": Markup(script),
        "library": Markup(base64.b64encode(packed).decode()),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}",
    }


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bert_jax.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clip=clip, figure=number, counted=counted)
    environment.globals.update(showing=showing, text_limit=TEXT_LIMIT)
    return environment


def clip(text: object, limit: int) -> str:
    """Returns a text. If it exceeds `limit` characters, truncates it and adds an ellipsis."""
    whole = str(text)
    return whole if len(whole) <= limit else f"{whole[:limit].rstrip()} …"


def number(value: float) -> str:
    """Returns a formatted number: ``0.8431``, ``88.21``, ``1,204``, ``2.00e−05``, ``nan``."""
    size = abs(value)
    if isinstance(value, int) or size >= 1000:
        text = f"{value:,.0f}"
    elif size == 0 or not math.isfinite(value):
        text = f"{value:g}"
    elif size < 1e-3:
        text = f"{value:.2e}"
    else:
        text = f"{value:.4f}" if size < 10 else f"{value:.2f}"
    return text.replace("-", "−")


def percentage(value: float) -> str:
    """Returns a share as a percentage: ``91.20%``, ``nan``."""
    return f"{value:.2%}".replace("-", "−") if math.isfinite(value) else f"{value:g}"


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """``{"optimizer": {"lr": 1e-5}}`` → ``[("optimizer.lr", "1e-05")]``."""
    rows = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", plain(value)))
    return rows


def plain(value: Any) -> str:
    """Returns a setting as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def is_share(score: str) -> bool:
    """Returns whether a score is shown as a percentage, as the console shows it."""
    return score.endswith(("accuracy", "mfu", "input_share"))


def score_cell(score: str, value: Any) -> Cell:
    """Returns the cell of a score: a number, a percentage, or a dash for no number."""
    if not isinstance(value, int | float):
        return "–"
    return Share(value) if is_share(score) else value


def showing(shown: int, total: int, noun: str, tail: str = "") -> str:
    """Returns ``Showing 25 of 312 errors.``, ``All 7 errors.``, ``1 error.`` or ``No errors.``.

    `tail` follows the noun, such as ``" with errors"``.
    """
    if total == 0:
        return f"No {noun}s{tail}."
    whole = counted(total, noun) + tail
    if shown < total:
        return f"Showing {shown:,} of {whole}."
    return f"{whole}." if total == 1 else f"All {whole}."
