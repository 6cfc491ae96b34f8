from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_jax.report.charts import (
    HEIGHT,
    POINTS,
    TALL,
    WIDTH,
    Series,
    heat_map,
    line_chart,
    scatter,
    ticks,
)
from bert_jax.report.html import Element
from bert_jax.report.png import png


def texts(figure: Element) -> str:
    return " ".join("".join(figure.itertext()).split())


def label(figure: Element) -> str:
    svg = figure.find("svg")
    assert svg is not None
    return svg.attrib["aria-label"]


@given(low=st.floats(-1e6, 1e6), size=st.floats(1e-6, 1e6), about=st.integers(3, 9))
@settings(deadline=None, max_examples=100)
def test_ticks_are_round_evenly_spaced_and_inside(low: float, size: float, about: int) -> None:
    # Beyond that ratio neighbouring floats are too far apart to be round.
    if abs(low) > 1e6 * size:
        return
    found = np.array(ticks(low, low + size, about=about))
    assert 1 <= len(found) <= about + 1
    assert (found >= low - 1e-6 * size).all()
    assert (found <= low + size * (1 + 1e-6)).all()
    if len(found) > 1:
        step = found[1] - found[0]
        np.testing.assert_allclose(np.diff(found), step, rtol=1e-3)
        mantissa = step / 10 ** np.floor(np.log10(step * 1.0001))
        assert min(abs(mantissa - round_) for round_ in (1, 2, 5, 10)) < 1e-2


def test_ticks_of_a_share() -> None:
    assert ticks(0, 1) == (0, 0.2, 0.4, 0.6, 0.8, 1.0)


def test_a_line_is_drawn_to_scale() -> None:
    made = line_chart("t", [Series("a", [(0, 0.0), (50, 1.0), (100, 0.5)])])
    lines = [path for path in made.iter("path") if path.get("class") == "s0"]
    (first, top, last) = (
        tuple(map(float, pair.split())) for pair in lines[0].attrib["d"][1:].split("L")
    )
    assert first[0] < top[0] < last[0]
    assert top[0] - first[0] == pytest.approx(last[0] - top[0], abs=0.2)
    assert first[1] - last[1] == pytest.approx(last[1] - top[1], abs=0.2)


def test_the_best_point_is_marked_and_told_in_words() -> None:
    made = line_chart("F1 on dev", [Series("F1", [(1, 0.5), (2, 0.75), (3, 0.7)], best=1)])
    assert "best 0.7500" in texts(made)
    assert label(made) == "F1 on dev: F1 from 0.5000 at 1 to 0.7000 at 3, best 0.7500 at 2"


def test_values_that_are_not_finite_are_left_out_and_said_to_be() -> None:
    nan, points = float("nan"), [(1.0, 1.0), (2.0, float("nan")), (3.0, 0.5), (4.0, float("inf"))]
    made = line_chart("Loss", [Series("a", points, best=2), Series("b", [(1, nan), (2, 2.0)])])
    assert "a: 2 values that are not finite are left out." in texts(made)
    assert "best 0.5000" in texts(made)
    assert "nan" not in "".join(path.attrib["d"] for path in made.iter("path"))
    with pytest.raises(ValueError, match="no finite point"):
        line_chart("Loss", [Series("a", [(1, nan)])])


def test_a_long_line_is_averaged_and_keeps_its_mean() -> None:
    size = 4 * POINTS
    made = line_chart("Loss", [Series("a", [(at, float(at % 2)) for at in range(size)])])
    assert "a: each point is the mean of 4." in texts(made)
    assert "0.5000 at 3 to 0.5000 at 999" in label(made)


def test_one_point_and_a_flat_line_can_be_drawn() -> None:
    lines = ([(5, 0.25)], [(1, 0.0), (2, 0.0)], [(1, -3.0), (9, -3.0)])
    charts = [line_chart("t", [Series("a", points)]) for points in lines]
    charts.append(scatter("t", [(1.0, 1.0)], x_label="x", y_label="y", worst=1))
    for made, height in zip(charts, (HEIGHT, HEIGHT, HEIGHT, TALL), strict=True):
        dots = [circle.attrib for circle in made.iter("circle")]
        assert dots
        assert all(0 < float(dot["cx"]) < WIDTH and 0 < float(dot["cy"]) < height for dot in dots)


@given(low=st.floats(-1e3, 1e3), size=st.floats(1e-4, 1e4))
@example(low=1.0, size=90.3)  # one multiple of 50 alone lies between
@settings(deadline=None, max_examples=60)
def test_the_marks_of_the_vertical_axis_hold_the_curve_between_them(
    low: float, size: float
) -> None:
    made = line_chart("t", [Series("a", [(1, low), (2, low + size)])])
    marks = [
        float(path.attrib["d"].split()[1].split("H")[0])
        for path in made.iter("path")
        if path.get("class") == "grid"
    ]
    curve = [float(circle.attrib["cy"]) for circle in made.iter("circle")]
    assert len(marks) >= 2
    assert min(marks) - 0.11 <= min(curve)
    assert max(curve) <= max(marks) + 0.11


def test_lines_can_be_told_apart_without_colour() -> None:
    made = line_chart("t", [Series(name, [(1, 1.0), (2, 2.0)]) for name in "abcd"])
    drawn = {path.get("class") for path in made.iter("path")} - {"axis", "grid"}
    assert drawn == {"s0", "s1", "s2", "s3"}
    assert texts(made).endswith("abcd")
    with pytest.raises(ValueError, match="found 5 lines"):
        line_chart("t", [Series("a", [(1, 1.0)])] * 5)


def test_a_cloud_rings_the_points_farthest_from_the_diagonal() -> None:
    points = [(float(at), float(at)) for at in range(100)]
    points[7], points[50] = (7.0, 90.0), (50.0, float("nan"))
    made = scatter("t", points, x_label="x", y_label="y", worst=1, limit=50)
    circles = list(made.iter("circle"))
    dots = [one for one in circles if one.get("class") == "dot"]
    (ring,) = (one for one in circles if one.get("class") == "worst")
    assert len(dots) == 50
    assert "50 of 99 points." in texts(made)
    assert "1 that are not finite are left out." in texts(made)
    # It lies above the diagonal: y grows downwards.
    assert float(ring.attrib["cy"]) < 100


def test_a_heat_map_is_a_table_of_counts_shaded_by_their_share_of_the_row() -> None:
    made = heat_map(
        np.array([[3, 1], [0, 0]]), rows=("a", "b"), columns=("a", "b"), corner="c", caption="d"
    )
    cells = list(made.iter("td"))
    assert ["".join(cell.itertext()) for cell in cells] == ["375%", "125%", "0", "0"]
    assert [cell.attrib["style"] for cell in cells] == [
        "--share:0.750", "--share:0.250", "--share:0.000", "--share:0.000",
    ]  # fmt: skip
    assert [cell.get("class") for cell in cells] == ["right", None, None, "right"]


def test_a_picture_reads_back_by_the_rules_of_the_format() -> None:
    levels = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
    content = png(levels, colour=(1, 2, 3))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", content, at + 8 + size) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + size
    assert [*chunks] == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (7, 5, 8, 3, 0, 0, 0)
    assert chunks[b"PLTE"] == bytes((1, 2, 3)) * 256
    assert chunks[b"tRNS"] == bytes(range(256))
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(5, 8)
    assert not rows[:, 0].any()  # no filter
    np.testing.assert_array_equal(rows[:, 1:], levels)
