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
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.report.rendering import Chart, Spec, clip, number, percentage, render_fragment

POINTS: Final = 500  # maximum number of points in a series; longer series keep their extremes
DOTTED: Final = 40  # maximum number of points in a series that is drawn with dots
STYLES: Final = 4  # number of colours, and of line styles
LINES: Final = STYLES**2  # maximum number of series in a line chart
DASHES: Final = ((1, 0), (7, 5), (2, 5), (10, 4, 2, 4))
CLOUD: Final = 2000  # maximum number of points in a scatter plot
BARS: Final = 40  # number of bars in `distributions`
LEGEND: Final = 24  # characters of all names in a legend of one row
EDGE: Final = 0.2  # share of the width beside an edge in which a label would not fit centred
NAMED: Final = 120  # maximum number of characters of a point's name in a map


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


class Mark(NamedTuple):
    """A named vertical line in a line chart, or a symbol on its x axis."""

    x: float
    text: str
    event: str = ""  # what the symbol `text` means; empty for a line


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "step",
    percent: bool = False,
    marks: Sequence[Mark] = (),
    levels: Sequence[tuple[float, str]] = (),
) -> Chart:
    """Returns a line chart with a common x axis.

    Omits non-finite values, and points of long series; `Chart.remarks` reports both changes.

    Args:
        title: title of the chart.
        series: at most `LINES` series, each with at least one finite point.
        x_label: name of the x axis.
        percent: whether to show 0.5 as 50%.
        marks: lines and symbols at places on the x axis.
        levels: y and name of horizontal lines.
    """
    shown = percentage if percent else number
    lines, remarks = zip(*map(_readable, series), strict=True)
    best = [line.best for line in lines if line.marks_best]
    spec = chart_spec(
        "line",
        **_styles(lines),
        values=[{"x": x, "y": y, "line": line.name} for line in lines for x, y in line.points],
        dotted=[line.name for line in lines if len(line.points) <= DOTTED],
        best=[
            {"x": x, "y": y, "text": f"best {shown(y)}", "align": _align(x, lines)} for x, y in best
        ],
        x_label=x_label,
        percent=percent,
        rules=[mark._asdict() | _side(mark.x, lines) for mark in marks if not mark.event],
        events=[mark._asdict() for mark in marks if mark.event],
        levels=[{"y": y, "text": text} for y, text in levels],
    )
    words = []
    for line in lines:
        (first, start), (last, end) = line.points[0], line.points[-1]
        ends = f"{shown(start)} at {number(first)} to {shown(end)} at {number(last)}"
        best = f", best {shown(line.best[1])} at {number(line.best[0])}" if line.marks_best else ""
        words.append(f"{line.name} from {ends}{best}")
    label = f"{title}: " + "; ".join([*words, *(f"{text} {shown(y)}" for y, text in levels)])
    return Chart(title, label, spec, list(itertools.chain(*remarks)))


def path_chart(
    title: str, series: Sequence[Series], *, x_label: str, y_label: str, remark: str
) -> Chart:
    """Returns a chart of paths in a plane, with a line at 0 of each axis.

    Args:
        title: title of the chart.
        series: at most `LINES` paths of finite points, in the order of the path.
        x_label: name of the x axis.
        y_label: name of the y axis.
        remark: sentence about the axes.
    """
    values = [
        {"x": x, "y": y, "line": line.name, "at": at}
        for line in series
        for at, (x, y) in enumerate(line.points)
        if at % math.ceil(len(line.points) / POINTS) == 0 or at == len(line.points) - 1
    ]
    ends = list({row["line"]: row for row in values}.values())
    spec = chart_spec(
        "path", **_styles(series), values=values, ends=ends, x_label=x_label, y_label=y_label
    )
    words = [f"{end['line']} ends at {number(end['x'])}, {number(end['y'])}" for end in ends]
    return Chart(title, f"{title}: {'; '.join(words)}", spec, [remark])


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


def _styles(lines: Sequence[Series]) -> dict[str, Any]:
    """Returns the names, colours and dashes of lines, and the number of columns of the legend."""
    names = [line.name for line in lines]
    return {
        "names": names,
        "colours": [f"var(--series-{at % STYLES})" for at in range(len(names))],
        "dashes": [DASHES[(at + at // STYLES) % STYLES] for at in range(len(names))],
        "columns": 1 if sum(map(len, names)) > LEGEND else 0,
    }


def _readable(series: Series) -> tuple[Series, list[str]]:
    """Returns the finite points, at most `POINTS`, and remarks on the omitted ones.

    A long series keeps its first and last point, and the lowest and highest of each part.
    """
    points = [point for point in series.points if math.isfinite(point[1])]
    remarks = []
    if missing := len(series.points) - len(points):
        remarks.append(f"{series.name}: omitted {missing:,} values that are not finite.")
    if (total := len(points)) > POINTS:
        values = np.array([y for _, y in points])
        kept = {0, total - 1}
        for part in np.array_split(np.arange(total), POINTS // 2 - 1):
            kept |= {int(part[values[part].argmin()]), int(part[values[part].argmax()])}
        points = [points[at] for at in sorted(kept)]
        remarks.append(f"{series.name}: {len(points):,} of {total:,} points, with all extremes.")
    return series._replace(points=points), remarks


def _side(x: float, lines: Sequence[Series]) -> dict[str, str | int]:
    """Returns the alignment and distance of a label beside a vertical line at `x`."""
    is_left = _align(x, lines) == "right"
    return {"align": "right" if is_left else "left", "dx": -4 if is_left else 4}


def _align(x: float, lines: Sequence[Series]) -> str:
    """Returns the alignment of a label at `x`, so that it stays in the chart."""
    places = [place for line in lines for place, _ in line.points]
    first, last = min(places), max(places)
    share = (x - first) / (last - first) if last > first else 0.5
    return "left" if share < EDGE else "right" if share > 1 - EDGE else "center"
