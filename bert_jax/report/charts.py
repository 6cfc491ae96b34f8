"""Line charts, scatter plots, histograms and heat maps as Vega-Lite specifications.

`templates/charts.js` renders them in the browser with `templates/vega.js.gz`: Vega 6, Vega-Lite 6
and Vega-Embed 7 (BSD-3-Clause) in one file, from ``vl_convert.javascript_bundle("window.vegaEmbed =
vegaEmbed;")`` of vl-convert-python 1.9.0, packed with ``gzip.compress(…, 9, mtime=0)``. It is kept
here because that package weighs 86 MB and takes four seconds to bundle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from bert_jax.report.rendering import number

HEIGHT: Final = 150  # pixels
POINTS: Final = 500  # of a line; longer ones are averaged
MARKED: Final = 40  # points of a line that are shown as dots
STYLES: Final = 4  # lines that can be told apart
CLOUD: Final = 2000  # points of a scatter plot

Spec: TypeAlias = dict[str, Any]

_COLOURS: Final = [f"var(--series-{at})" for at in range(STYLES)]
_DASHES: Final = [[1, 0], [7, 5], [2, 5], [10, 4, 2, 4]]
# The wheel alone must scroll the page; a pinch arrives as a wheel event with Ctrl.
_ZOOM: Final = {
    "name": "zoom",
    "select": {"type": "interval", "zoom": "wheel![event.ctrlKey]"},
    "bind": "scales",
}


_TICK: Final = (
    "format(datum.value, datum.value && abs(datum.value) < 1e-3 ? '~e' : ',~g')"  # of an axis
)


class Series(NamedTuple):
    """A line."""

    name: str
    points: Sequence[tuple[float, float]]  # x rising
    best: int | None = None  # index of the point to highlight


class Chart(NamedTuple):
    """A chart for the templates."""

    title: str
    label: str
    """The chart in words, for screen readers and without JavaScript."""
    spec: Spec
    remarks: Sequence[str] = ()


def line_chart(title: str, series: Sequence[Series], *, x_label: str = "step") -> Chart:
    """Returns lines over a common x.

    Values that are not finite are left out and long lines averaged; the remarks say so.

    Args:
        title: what is shown.
        series: at most `STYLES` lines, each with at least one finite point.
        x_label: what x is.

    Raises:
        ValueError: too many lines, or one without a finite point.
    """
    if not 1 <= len(series) <= STYLES:
        raise ValueError(f"found {len(series)} lines, allowed: 1 to {STYLES}")
    remarks: list[str] = []
    lines: list[Series] = []
    for each in series:
        line, remark = _readable(each)
        lines.append(line)
        remarks += remark
    values = [{"x": x, "y": y, "line": line.name} for line in lines for x, y in line.points]
    best = [
        {"x": x, "y": y, "text": f"best {number(y)}"}
        for line in lines
        if line.best is not None
        for x, y in [line.points[line.best]]
    ]
    spec: Spec = {
        "height": HEIGHT,
        "data": {"values": values},
        "encoding": {"x": _axis("x", x_label), "y": _axis("y", None, padding=18 if best else 4)},
        "layer": [_line_layers(lines, x_label=x_label), *_best_layers(best)],
    }
    label = f"{title}: " + "; ".join(_in_words(line) for line in lines)
    return Chart(title, label, spec, remarks)


def scatter(
    title: str, points: Sequence[tuple[float, float]], *, x_label: str, y_label: str, worst: int
) -> Chart:
    """Returns points around the diagonal, the farthest from it ringed.

    Args:
        title: what is shown.
        points: x and y, in one unit; at least one is finite.
        x_label: what x is.
        y_label: what y is.
        worst: how many to ring.
    """
    values = np.asarray(points, np.float64)
    finite = values[np.isfinite(values).all(1)]
    order = np.argsort(-np.abs(finite[:, 0] - finite[:, 1]), kind="stable")[:worst]
    shown = finite[:: math.ceil(len(finite) / CLOUD)]
    low, high = float(finite.min()), float(finite.max())
    tooltip = [
        {"field": "x", "title": x_label, "format": ".4~g"},
        {"field": "y", "title": y_label, "format": ".4~g"},
    ]
    spec: Spec = {
        "height": 2 * HEIGHT,
        "encoding": {"x": _axis("x", x_label), "y": _axis("y", y_label), "tooltip": tooltip},
        "layer": [
            {
                "data": {"values": [{"x": low, "y": low}, {"x": high, "y": high}]},
                "mark": {"type": "line", "color": "var(--quiet)", "tooltip": None, "clip": True},
            },
            {
                "data": {"values": _rows(shown)},
                "params": [_ZOOM],
                "mark": {"type": "circle", "opacity": 0.4, "color": _COLOURS[0], "clip": True},
            },
            {
                "data": {"values": _rows(finite[order])},
                "mark": {"type": "point", "size": 90, "color": _COLOURS[1], "clip": True},
            },
        ],
    }
    remarks = [] if len(shown) == len(finite) else [f"{len(shown):,} of {len(finite):,} points."]
    if len(finite) < len(values):
        remarks.append(f"{len(values) - len(finite):,} that are not finite are left out.")
    label = f"{title}: {len(finite):,} points, {y_label} against {x_label}"
    return Chart(title, label, spec, remarks)


def histogram(title: str, counts: Sequence[int], *, edges: Sequence[float], x_label: str) -> Chart:
    """Returns adjacent bars on a logarithmic scale, on which a count of 0 has no height.

    Lengths of examples call for it: most have the maximal length.

    Args:
        title: what is shown.
        counts: of each bar, at least one.
        edges: where the bars begin, and where the last one ends; rising.
        x_label: what x is.
    """
    values = [
        {"x": start, "end": stop, "last": stop - 1, "y": value}
        for start, stop, value in zip(edges, edges[1:], counts, strict=False)
    ]
    powers = [10**power for power in range(len(str(max(counts))))]
    spec: Spec = {
        "height": HEIGHT,
        "data": {"values": values},
        "params": [{**_ZOOM, "select": {**_ZOOM["select"], "encodings": ["x"]}}],
        "mark": {"type": "bar", "color": _COLOURS[0], "clip": True, "binSpacing": 0.5},
        "encoding": {
            "x": {**_axis("x", x_label), "bin": "binned"},
            "x2": {"field": "end"},
            "y": {
                "field": "y",
                "type": "quantitative",
                "title": None,
                "scale": {"type": "symlog"},
                "axis": {"values": [0, *powers], "labelOverlap": False, "tickCount": 99},
            },
            "tooltip": [
                {"field": "x", "title": "from", "format": ","},
                {"field": "last", "title": "to", "format": ","},
                {"field": "y", "title": "count", "format": ","},
            ],
        },
    }
    most = max(range(len(counts)), key=counts.__getitem__)
    label = (
        f"{title}: {len(counts)} bars from {number(edges[0])} to {number(edges[-1] - 1)}, the "
        f"highest from {number(edges[most])}: {number(counts[most])}"
    )
    return Chart(title, label, spec, ["Logarithmic scale."])


def weight_map(tokens: Sequence[str], *, cell: int) -> Spec:
    """Returns a square heat map of one attention head; the page's script sets its data.

    Rows have the fields `q` and `k` (indices of query and key), `query`, `key` and `weight`.

    Args:
        tokens: labels of rows and columns; not necessarily unique.
        cell: side of one weight in pixels.
    """
    axis = {"labelExpr": "tokens[datum.value]", "labelLimit": 110, "labelOverlap": False}
    axis |= {"labelColor": "var(--text)", "ticks": False, "domain": False, "title": None}
    return {
        "width": cell * len(tokens),
        "height": cell * len(tokens),
        "autosize": {"type": "pad", "resize": True},  # labels come with the data
        "view": {"stroke": "var(--line)"},
        "params": [{"name": "tokens", "value": list(tokens)}],
        "data": {"name": "weights"},
        "mark": {"type": "rect", "color": _COLOURS[0]},
        "encoding": {
            "x": {"field": "k", "type": "ordinal", "axis": {**axis, "orient": "top"}},
            "y": {"field": "q", "type": "ordinal", "axis": axis},
            "opacity": {
                "field": "weight",
                "type": "quantitative",
                "scale": {"type": "sqrt", "domain": [0, 1], "range": [0, 1]},
                "legend": None,
            },
            "tooltip": [
                {"field": "query"},
                {"field": "key"},
                {"field": "weight", "format": ".2f"},
            ],
        },
    }


def _axis(field: str, label: str | None, *, padding: int = 6) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "title": label,
        "scale": {"zero": False, "nice": False, "padding": padding},
        "axis": {"labelExpr": _TICK},
    }


def _line_layers(lines: Sequence[Series], *, x_label: str) -> Spec:
    """Lines with their legend, and dots: of short lines always, of all below the pointer."""
    names = [line.name for line in lines]
    few = [line.name for line in lines if len(line.points) <= MARKED]
    legend = {"orient": "bottom"} if len(lines) > 1 else None

    def by_line(values: Sequence[Any]) -> Spec:
        scale = {"domain": names, "range": values[: len(names)]}
        return {"field": "line", "type": "nominal", "title": None, "scale": scale, "legend": legend}

    hover = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    visible = [
        {"param": "hover", "empty": False, "value": 1},
        {"test": {"field": "line", "oneOf": few}, "value": 1},
    ]
    # Of a point, or of the Voronoi cell around it; for a cell a plain field of text is undefined.
    point = "(datum.datum || datum)"
    tooltip = (
        f"{{line: {point}.line, {json.dumps(x_label)}: format({point}.x, ',~g'), "
        f"value: format({point}.y, '.4~g')}}"
    )
    return {
        "encoding": {"color": by_line(_COLOURS)},
        "layer": [
            {
                "mark": {"type": "line", "strokeJoin": "round", "clip": True},
                "params": [_ZOOM],
                "encoding": {"strokeDash": by_line(_DASHES)},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 45, "clip": True},
                "params": [{"name": "hover", "select": hover}],
                "encoding": {
                    "opacity": {"condition": visible, "value": 0},
                    "tooltip": {"value": {"expr": tooltip}},
                },
            },
        ],
    }


def _best_layers(best: Sequence[Mapping[str, Any]]) -> list[Spec]:
    if not best:
        return []
    data = {"values": list(best)}
    text = {"type": "text", "dy": -12, "fontWeight": 600, "fontSize": 12, "color": "var(--text)"}
    return [
        {"data": data, "mark": {"type": "circle", "size": 110, "color": "var(--text)"}},
        {"data": data, "mark": text, "encoding": {"text": {"field": "text"}}},
    ]


def _rows(points: np.ndarray) -> list[dict[str, float]]:
    return [{"x": float(f"{x:.5g}"), "y": float(f"{y:.5g}")} for x, y in points.tolist()]


def _readable(series: Series) -> tuple[Series, list[str]]:
    """Returns the finite points of a line, averaged if they are many, and remarks on it."""
    finite = [(at, point) for at, point in enumerate(series.points) if math.isfinite(point[1])]
    if not finite:
        raise ValueError(f"{series.name}: found no finite point")
    remarks = []
    if missing := len(series.points) - len(finite):
        remarks.append(f"{series.name}: {missing:,} values that are not finite are left out.")
    points = [point for _, point in finite]
    best = next((new for new, (at, _) in enumerate(finite) if at == series.best), None)
    if len(points) > POINTS and series.best is None:
        size = math.ceil(len(points) / POINTS)
        groups = [points[start : start + size] for start in range(0, len(points), size)]
        points = [(group[-1][0], float(np.mean([y for _, y in group]))) for group in groups]
        remarks.append(f"{series.name}: each point is the mean of {size}.")
    return Series(series.name, points, best), remarks


def _in_words(line: Series) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    words = (
        f"{line.name} from {number(start)} at {number(first)} to {number(end)} at {number(last)}"
    )
    if line.best is not None:
        step, value = line.points[line.best]
        words += f", best {number(value)} at {number(step)}"
    return words
