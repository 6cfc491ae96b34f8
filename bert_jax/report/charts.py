"""Line charts, bar charts, scatter plots, histograms and maps in Vega-Lite.

The specifications are `templates/charts/*.json`. `templates/charts.js` renders them in the browser.
It uses `templates/vega.js.gz`, which contains Vega 6, Vega-Lite 6 and Vega-Embed 7 (BSD-3-Clause).
The bundle is the output of ``vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")`` of
vl-convert-python 1.9.0, compressed with ``gzip.compress(…, 9, mtime=0)``. The repository includes
the bundle, because vl-convert-python is an 84 MB package and takes four seconds to make it.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from bert_jax.report.rendering import clip, number, percentage, render_fragment

POINTS: Final = 500  # maximum number of points in a series; longer series are averaged
DOTTED: Final = 40  # maximum number of points in a series that is drawn with dots
STYLES: Final = 4  # number of line styles: the maximum number of series in a chart
CLOUD: Final = 2000  # maximum number of points in a scatter plot
BARS: Final = 40  # number of bars in `distributions`
LEGEND: Final = 24  # characters of all names in a legend of one row
EDGE: Final = 0.2  # share of the width beside an edge in which a label would not fit centred
NAMED: Final = 120  # maximum number of characters of a point's name in a map

Spec: TypeAlias = dict[str, Any]


class Series(NamedTuple):
    """One line in a line chart."""

    name: str
    points: Sequence[tuple[float, float]]  # (x, y), x ascending
    marks_best: bool = False  # whether to highlight the highest point
    kept: float | None = None  # x of the point that is highlighted if several are the highest

    @property
    def best(self) -> tuple[float, float]:
        """The highest point."""
        return max(self.points, key=lambda point: (point[1], point[0] == self.kept))


class Chart(NamedTuple):
    """A chart, as the templates show it."""

    title: str
    label: str  # description for screen readers, also shown without JavaScript
    spec: Spec
    remarks: Sequence[str] = ()


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str = "step", percent: bool = False
) -> Chart:
    """Returns a line chart with a common x axis. With `percent`, shows 0.5 as 50%.

    Omits non-finite values and averages long series; `Chart.remarks` reports both changes. Requires
    at most `STYLES` series, each with at least one finite point.
    """
    shown = percentage if percent else number
    lines, remarks = zip(*map(_readable, series), strict=True)
    best = [line.best for line in lines if line.marks_best]
    spec = chart_spec(
        "line",
        names=[line.name for line in lines],
        values=[{"x": x, "y": y, "line": line.name} for line in lines for x, y in line.points],
        dotted=[line.name for line in lines if len(line.points) <= DOTTED],
        best=[
            {"x": x, "y": y, "text": f"best {shown(y)}", "align": _align(x, lines)} for x, y in best
        ],
        x_label=x_label,
        percent=percent,
        columns=1 if sum(len(line.name) for line in lines) > LEGEND else 0,
    )
    label = f"{title}: " + "; ".join(_in_words(line, shown) for line in lines)
    return Chart(title, label, spec, list(itertools.chain(*remarks)))


def scatter(title: str, values: np.ndarray, *, x_label: str, y_label: str, worst: int) -> Chart:
    """Returns a scatter plot with the diagonal. Circles the points farthest from the diagonal.

    `values` are points (x, y) with a common unit, float [points, 2]; at least one is finite.
    `worst` is the number of circled points.
    """
    finite = values[np.isfinite(values).all(1)]
    order = np.argsort(-np.abs(finite[:, 0] - finite[:, 1]), kind="stable")[:worst]
    shown = finite[:: math.ceil(len(finite) / CLOUD)]
    ends = np.array([finite.min(), finite.max()])
    spec = chart_spec(
        "scatter",
        diagonal=_rows(np.stack([ends, ends], 1)),
        shown=_rows(shown),
        worst=_rows(finite[order]),
        x_label=x_label,
        y_label=y_label,
    )
    remarks = [] if len(shown) == len(finite) else [f"{len(shown):,} of {len(finite):,} points."]
    if len(finite) < len(values):
        remarks.append(f"Omitted {len(values) - len(finite):,} that are not finite.")
    label = f"{title}: {len(finite):,} points, {y_label} against {x_label}"
    return Chart(title, label, spec, remarks)


def histogram(
    title: str,
    counts: Sequence[int],
    *,
    edges: Sequence[float],
    x_label: str,
    mark: tuple[float, str] | None = None,
) -> Chart:
    """Returns a histogram with a logarithmic y axis. Bars with a count of 0 have no height.

    Most examples have the maximum length, so a linear axis would hide the short ones. `edges` are
    the bounds of the bars, ascending, [len(counts) + 1]; if they are integers, so are the values.
    `mark` is the place and the name of a vertical line.
    """
    lasts = [stop - 1 if isinstance(stop, int) else stop for stop in edges[1:]]
    spec = chart_spec(
        "histogram",
        bars=[
            {"x": start, "end": stop, "last": last, "y": value}
            for start, stop, last, value in zip(edges, edges[1:], lasts, counts, strict=False)
        ],
        ticks=[0, *(10**power for power in range(len(str(max(counts)))))],
        x_label=x_label,
        mark=None if mark is None else {"x": mark[0], "name": mark[1]},
    )
    most = max(range(len(counts)), key=counts.__getitem__)
    label = (
        f"{title}: {len(counts)} bars from {number(edges[0])} to {number(lasts[-1])}, the "
        f"highest from {number(edges[most])}: {number(counts[most])}"
    )
    label += f"; {mark[1]} at {number(mark[0])}" if mark else ""
    remarks = ["Logarithmic scale.", *([f"The line marks the {mark[1]}."] if mark else [])]
    return Chart(title, label, spec, remarks)


def distributions(title: str, groups: Mapping[str, np.ndarray], *, x_label: str) -> Chart:
    """Returns overlapping histograms of groups. The bars of each group add up to 1.

    `groups` are finite values by name: at most `STYLES` groups, each with at least one value.
    """
    everything = np.concatenate(list(groups.values()))
    edges = np.histogram_bin_edges(everything, bins=BARS)
    values = []
    for name, own in groups.items():
        shares = np.histogram(own, edges)[0] / len(own)
        # The last bar ends with the last edge.
        ends = zip(edges.tolist(), [*shares.tolist(), 0.0], strict=True)
        values += [
            {"x": float(f"{x:.5g}"), "share": float(f"{share:.5g}"), "group": name}
            for x, share in ends
        ]
    spec = chart_spec("distributions", values=values, groups=list(groups), x_label=x_label)
    words = "; ".join(
        f"{name} ({len(own):,}) mean {number(float(own.mean()))}" for name, own in groups.items()
    )
    return Chart(title, f"{title}: {words}", spec)


def point_map(
    title: str,
    places: np.ndarray,
    *,
    names: Sequence[str],
    groups: Sequence[str],
    links: Sequence[tuple[int, int]],
    remark: str,
) -> Chart:
    """Returns a map of named points in at most `STYLES` groups.

    Args:
        title: title of the chart.
        places: finite coordinates, float [points, 2]. At most `CLOUD` points.
        names: names of the points, shown when a reader points at them.
        groups: group of each point.
        links: pairs of points to link with a line.
        remark: sentence about the axes.
    """
    rows = _rows(places)
    spec = chart_spec(
        "map",
        points=[
            {**row, "name": clip(name, NAMED), "group": group}
            for row, name, group in zip(rows, names, groups, strict=True)
        ],
        links=[{**rows[at], "link": link} for link, ends in enumerate(links) for at in ends],
        groups=sorted(set(groups)),
    )
    return Chart(title, f"{title}: {len(places):,} points. {remark}", spec, [remark])


def bar_chart(title: str, bars: Sequence[tuple[str, Mapping[str, float]]], *, unit: str) -> Chart:
    """Returns a chart with horizontal, stacked bars.

    `bars` are (name, {segment: size in `unit`}) from top to bottom. Requires at least one bar and
    at most `STYLES` different segments.
    """
    parts = list(dict.fromkeys(part for _, sizes in bars for part in sizes))
    values = [
        {"bar": name, "part": part, "at": parts.index(part), "value": float(f"{size:.5g}")}
        for name, sizes in bars
        for part, size in sizes.items()
    ]
    names = list(dict.fromkeys(name for name, _ in bars))
    spec = chart_spec("bars", values=values, bars=names, parts=parts, unit=unit)
    words = "; ".join(
        f"{name} {number(sum(sizes.values()))} "
        f"({', '.join(f'{part} {number(size)}' for part, size in sizes.items())})"
        for name, sizes in bars
    )
    return Chart(title, f"{title}, {unit}: {words}", spec)


def chart_spec(name: str, **values: Any) -> Spec:
    """Returns the specification ``templates/charts/<name>.json`` with values for its variables."""
    return json.loads(render_fragment(f"charts/{name}.json", **values))


def _rows(points: np.ndarray) -> list[dict[str, float]]:
    return [{"x": float(f"{x:.5g}"), "y": float(f"{y:.5g}")} for x, y in points.tolist()]


def _readable(series: Series) -> tuple[Series, list[str]]:
    """Returns the finite points, averaged if above `POINTS`, and remarks on both changes."""
    points = [point for point in series.points if math.isfinite(point[1])]
    remarks = []
    if missing := len(series.points) - len(points):
        remarks.append(f"{series.name}: omitted {missing:,} values that are not finite.")
    if len(points) > POINTS and not series.marks_best:
        size = math.ceil(len(points) / POINTS)
        groups = [points[start : start + size] for start in range(0, len(points), size)]
        points = [(group[-1][0], float(np.mean([y for _, y in group]))) for group in groups]
        remarks.append(f"{series.name}: each point is the mean of {size} values.")
    return series._replace(points=points), remarks


def _in_words(line: Series, shown: Callable[[float], str]) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    words = f"{line.name} from {shown(start)} at {number(first)} to {shown(end)} at {number(last)}"
    if line.marks_best:
        words += f", best {shown(line.best[1])} at {number(line.best[0])}"
    return words


def _align(x: float, lines: Sequence[Series]) -> str:
    """Returns the alignment of a label at `x`, so that it stays in the chart."""
    places = [place for line in lines for place, _ in line.points]
    first, last = min(places), max(places)
    share = (x - first) / (last - first) if last > first else 0.5
    return "left" if share < EDGE else "right" if share > 1 - EDGE else "center"
