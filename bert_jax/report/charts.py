"""Curves, point clouds, bars and heat maps: inline SVG and HTML, no library behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.report.html import Element, Node, clip, element, number
from bert_jax.report.page import scrolling

WIDTH: Final = 350
HEIGHT: Final = 230
TALL: Final = 320  # of a cloud
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 42  # margins around the plot
POINTS: Final = 250  # of a line; more are averaged
NAME: Final = 24  # letters of a row's or column's name
STYLES: Final = 4  # lines that can be told apart


class Series(NamedTuple):
    """A line."""

    name: str
    points: Sequence[tuple[float, float]]  # x rising
    best: int | None = None  # which point is marked


class Axis(NamedTuple):
    """A range of values on a stretch of the picture."""

    low: float
    high: float
    start: float  # where `low` lies
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """Returns where a value lies."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def line_chart(title: str, series: Sequence[Series], *, x_label: str = "step") -> Element:
    """Returns curves over a common x.

    Values that are not finite are left out, long lines averaged; the caption says so.

    Args:
        title: what is shown.
        series: one line for each style at most, each with at least one finite point.
        x_label: what x is.

    Raises:
        ValueError: too many lines, or one without a finite point.
    """
    if not 1 <= len(series) <= STYLES:
        raise ValueError(f"found {len(series)} lines, allowed: 1 to {STYLES}")
    remarks = []
    lines = []
    for each in series:
        line, remark = _readable(each)
        lines.append(line)
        remarks += remark
    x, y = _axes([point for line in lines for point in line.points])
    drawn: list[Node] = [*_frame(x, y, x_label)]
    for style, line in enumerate(lines):
        drawn += _line(line, x, y, style=style)
    label = f"{title}: " + "; ".join(_in_words(line) for line in lines)
    svg = _picture(drawn, label)
    caption = element("figcaption", element("strong", title), *remarks)
    return element("figure", caption, svg, _legend(lines) if len(lines) > 1 else None)


def scatter(
    title: str,
    points: Sequence[tuple[float, float]],
    *,
    x_label: str,
    y_label: str,
    worst: int,
    limit: int = 2000,
) -> Element:
    """Returns points around the diagonal, those farthest from it ringed.

    Args:
        title: what is shown.
        points: x and y, in one unit.
        x_label: what x is.
        y_label: what y is.
        worst: how many to ring.
        limit: of points drawn; every n-th is taken beyond it.
    """
    values = np.asarray(points, np.float64)
    finite = values[np.isfinite(values).all(1)]
    order = np.argsort(-np.abs(finite[:, 0] - finite[:, 1]), kind="stable")[:worst]
    shown = finite[:: math.ceil(len(finite) / limit)]
    low, high = float(finite.min()), float(finite.max())
    x, y = _axes([(low, low), (high, high)], height=TALL)
    drawn: list[Node] = [
        *_frame(x, y, x_label),
        element("text", y_label, x=LEFT, y=14),
        element("path", d=f"M{x(low)} {y(low)}L{x(high)} {y(high)}", class_="axis"),
    ]
    drawn += [element("circle", cx=x(a), cy=y(b), r=2, class_="dot") for a, b in shown]
    drawn += [element("circle", cx=x(a), cy=y(b), r=5, class_="worst") for a, b in finite[order]]
    remarks = [] if len(shown) == len(finite) else [f" {len(shown):,} of {len(finite):,} points."]
    if len(finite) < len(values):
        remarks.append(f" {len(values) - len(finite):,} that are not finite are left out.")
    svg = element(
        "svg",
        *drawn,
        class_="chart",
        viewBox=f"0 0 {WIDTH} {TALL}",
        role="img",
        aria_label=f"{title}: {len(finite):,} points, {y_label} against {x_label}",
    )
    caption = element("figcaption", element("strong", title), *remarks)
    return element("figure", caption, svg, class_="cloud")


def histogram(
    title: str, counts: Sequence[int], *, edges: Sequence[float], x_label: str
) -> Element:
    """Returns bars that stand side by side, each as high as its count, on a logarithmic scale.

    Lengths of examples call for it: most have the one length that all aim at.

    Args:
        title: what is shown.
        counts: of each bar, at least one.
        edges: where the bars begin, and where the last one ends; rising.
        x_label: what x is.
    """
    heights = [math.log10(value + 1) for value in counts]
    powers = range(math.ceil(math.log10(max(counts) + 1)) + 1)
    marks = tuple(math.log10(10**power + 1) for power in powers)
    x, _ = _axes([(edges[0], 0), (edges[-1], 1)])
    y = Axis(0.0, max(*heights, 0.5), HEIGHT - BOTTOM, TOP, marks)
    y = y._replace(ticks=tuple(mark for mark in marks if mark <= y.high))
    drawn: list[Node] = [*_frame(x, y, x_label, tick=lambda mark: _tick(round(10**mark) - 1))]
    for at, value in enumerate(counts):
        start, stop = edges[at], edges[at + 1]
        said = element("title", f"{number(start)} to {number(stop - 1)}: {number(value)}")
        drawn.append(
            element(
                "rect",
                said,
                x=x(start),
                y=y(heights[at]),
                width=round(max(x(stop) - x(start) - 0.5, 0.5), 1),
                height=round(y(0) - y(heights[at]), 1),
                class_="bin",
            )
        )
    most = max(range(len(counts)), key=counts.__getitem__)
    label = (
        f"{title}: {len(counts)} bars from {number(edges[0])} to {number(edges[-1] - 1)}, the "
        f"highest from {number(edges[most])}: {number(counts[most])}"
    )
    svg = _picture(drawn, label)
    caption = element("figcaption", element("strong", title), " Logarithmic scale.")
    return element("figure", caption, svg)


def heat_map(
    counts: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    corner: str,
    caption: str,
) -> Element:
    """Returns a table of counts, each cell as dark as its share of the row.

    The diagonal, where rows and columns agree, is blue and bold; what lies beside it is orange.

    Args:
        counts: integers [rows, columns].
        rows: their names.
        columns: their names; the diagonal is where a row has the column's name.
        corner: what rows and columns are.
        caption: what is shown.
    """
    head = [element("th", corner, scope="col", class_="corner")]
    head += [_name(name, scope="col") for name in columns]
    body = []
    for name, row in zip(rows, counts.tolist(), strict=True):
        total = sum(row)
        cells = []
        for column, value in zip(columns, row, strict=True):
            share = value / total if total else 0.0
            cells.append(
                element(
                    "td",
                    f"{value:,}",
                    element("small", f"{share:.0%}") if value else None,
                    class_="right" if column == name else None,
                    style=f"--share:{share:.3f}",
                )
            )
        body.append(element("tr", _name(name, scope="row"), *cells))
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_="heat",
    )
    return scrolling(made, name=caption)


def _name(name: str, *, scope: str) -> Element:
    short = clip(name, limit=NAME)
    return element("th", short, scope=scope, title=name if short != name else None)


def bar(share: float) -> Element:
    """Returns a bar filled to a share of 1; the figure itself has to stand beside it."""
    return element(
        "span", class_="bar", style=f"--share:{min(max(share, 0), 1):.3f}", aria_hidden="true"
    )


def ticks(low: float, high: float, *, about: int = 5) -> tuple[float, ...]:
    """Returns round values that lie from `low` to `high`: ``ticks(0, 1)`` → 0, 0.2, … 1.

    Steps are 1, 2 or 5 times a power of ten. ``ticks(1, 91, about=4)`` → 50 alone.
    """
    return _multiples(_step(low, high, about), low, high)


def _step(low: float, high: float, about: int) -> float:
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _multiples(step: float, low: float, high: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{index * step:.10g}") for index in range(first, last + 1))


def _readable(series: Series) -> tuple[Series, list[str]]:
    """Returns what can be drawn of a line, and what was done to it."""
    finite = [(at, point) for at, point in enumerate(series.points) if math.isfinite(point[1])]
    if not finite:
        raise ValueError(f"{series.name}: found no finite point")
    remarks = []
    if missing := len(series.points) - len(finite):
        remarks.append(f" {series.name}: {missing:,} values that are not finite are left out.")
    points = [point for _, point in finite]
    best = next((new for new, (at, _) in enumerate(finite) if at == series.best), None)
    if len(points) > POINTS and series.best is None:
        size = math.ceil(len(points) / POINTS)
        groups = [points[start : start + size] for start in range(0, len(points), size)]
        points = [(group[-1][0], float(np.mean([y for _, y in group]))) for group in groups]
        remarks.append(f" {series.name}: each point is the mean of {size}.")
    return Series(series.name, points, best), remarks


def _axes(points: Sequence[tuple[float, float]], *, height: int = HEIGHT) -> tuple[Axis, Axis]:
    # A mark every 40 units.
    stretches = ((LEFT, WIDTH - RIGHT), (height - BOTTOM, TOP))
    axes = []
    for values, (start, end) in zip(zip(*points, strict=True), stretches, strict=True):
        low, high = min(values), max(values)
        if low == high:
            room = abs(low) * 0.05 or 0.5
            low, high = low - room, high + room
        step = _step(low, high, about=round(abs(end - start) / 40))
        if start > end:  # a y axis reaches from mark to mark
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        marks = _multiples(step, low, high)
        room = 0.03 * (high - low)
        axes.append(Axis(low - room, high + room, start, end, marks))
    return axes[0], axes[1]


def _picture(drawn: Sequence[Node], label: str) -> Element:
    """Returns a chart of the common size, with what it says in words."""
    return element(
        "svg",
        *drawn,
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=label,
    )


def _frame(
    x: Axis, y: Axis, x_label: str, *, tick: Callable[[float], str] = lambda mark: _tick(mark)
) -> list[Element]:
    bottom, right = y.start, WIDTH - RIGHT
    drawn = []
    for value in y.ticks:
        drawn.append(element("path", d=f"M{LEFT} {y(value)}H{right}", class_="grid"))
        drawn.append(element("text", tick(value), x=LEFT - 7, y=y(value) + 4, text_anchor="end"))
    for value in x.ticks:
        drawn.append(element("text", _tick(value), x=x(value), y=bottom + 17, text_anchor="middle"))
    drawn.append(element("path", d=f"M{LEFT} {bottom}H{right}", class_="axis"))
    drawn.append(
        element("text", x_label, x=(LEFT + right) / 2, y=bottom + 35, text_anchor="middle")
    )
    return drawn


def _line(line: Series, x: Axis, y: Axis, *, style: int) -> list[Element]:
    places = [(x(a), y(b)) for a, b in line.points]
    drawn = [element("path", d="M" + "L".join(f"{a} {b}" for a, b in places), class_=f"s{style}")]
    if len(places) <= 40:
        for (a, b), (step, value) in zip(places, line.points, strict=True):
            title = element("title", f"{line.name}, {number(step)}: {number(value)}")
            drawn.append(element("circle", title, cx=a, cy=b, r=3, class_=f"s{style}"))
    if line.best is not None:
        (a, b), (_, value) = places[line.best], line.points[line.best]
        drawn.append(element("circle", cx=a, cy=b, r=5.5, class_="best"))
        anchor = "start" if a < LEFT + 60 else "end" if a > WIDTH - 90 else "middle"
        drawn.append(
            element(
                "text", f"best {number(value)}", x=a, y=b - 10, text_anchor=anchor, class_="best"
            )
        )
    return drawn


def _legend(lines: Sequence[Series]) -> Element:
    items = []
    for style, line in enumerate(lines):
        swatch = element(
            "svg",
            element("path", d="M1 5H39", class_=f"s{style}"),
            viewBox="0 0 40 10",
            aria_hidden="true",
        )
        items.append(element("li", swatch, line.name))
    return element("ul", *items, class_="legend")


def _in_words(line: Series) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    told = f"{line.name} from {number(start)} at {number(first)} to {number(end)} at {number(last)}"
    if line.best is not None:
        step, value = line.points[line.best]
        told += f", best {number(value)} at {number(step)}"
    return told


def _tick(value: float) -> str:
    size = abs(value)
    text = f"{value:.2g}" if size and (size < 1e-3 or size >= 1e6) else f"{value:,.10g}"
    return text.replace("-", "−").replace("e−0", "e−").replace("e+0", "e")
