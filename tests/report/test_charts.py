import numpy as np

from bert_jax.report.charts import (
    LINES,
    POINTS,
    Mark,
    Series,
    bar_chart,
    distributions,
    histogram,
    line_chart,
    path_chart,
    point_map,
)
from bert_jax.report.rendering import Chart, Spec


def points(spec: Spec) -> list[tuple[float, float]]:
    return [(row["x"], row["y"]) for row in spec["data"]["values"]]


def lines(chart: Chart) -> Spec:
    """Returns the layer with the lines and dots."""
    return chart.spec["layer"][0]


def best(chart: Chart) -> list[Spec]:
    return [row for layer in chart.spec["layer"][1:] for row in layer["data"]["values"]]


def test_a_line_chart_has_points_and_a_description() -> None:
    made = line_chart("F1 on dev", [Series("F1", [(1, 0.5), (2, 0.75), (3, 0.7)], True)])
    assert points(made.spec) == [(1, 0.5), (2, 0.75), (3, 0.7)]
    assert best(made)[0] == {"x": 2, "y": 0.75, "text": "best 0.7500", "align": "center"}
    assert made.label == "F1 on dev: F1 from 0.5000 at 1 to 0.7000 at 3, best 0.7500 at 2"


def test_labels_and_legends_stay_in_the_chart() -> None:
    for at, align in ((0, "left"), (1, "center"), (2, "right")):
        points_ = [(x, 0.9 if x == at else 0.5) for x in range(3)]
        made = line_chart("F1", [Series("F1", points_, True)])
        assert best(made)[0]["align"] == align
    # Long names are below each other.
    for names, columns in ((("a", "b"), 0), (("dev_matched/accuracy", "dev_mismatched/acc"), 1)):
        made = line_chart("F1", [Series(name, [(1, 0.5), (2, 0.6)]) for name in names])
        colour = lines(made)["encoding"]["color"]
        assert colour["legend"]["columns"] == columns


def test_a_legend_is_as_visible_as_its_text() -> None:
    groups = {"a": np.array([0.0, 1.0]), "b": np.array([0.5, 1.0])}
    made = distributions("t", groups, x_label="cosine")
    assert made.spec["encoding"]["color"]["legend"]["symbolOpacity"] == 1
    places = np.array([[0.0, 1.0], [1.0, 0.0]])
    cloud = point_map("t", places, names=["x", "y"], groups=["a", "b"], links=[], remark="")
    assert cloud.spec["layer"][1]["encoding"]["color"]["legend"]["symbolOpacity"] == 1


def test_nonfinite_values_are_omitted_and_reported() -> None:
    nan, points_ = float("nan"), [(1.0, 1.0), (2.0, float("nan")), (3.0, 0.5), (4.0, float("inf"))]
    made = line_chart(
        "Loss", [Series("a", points_, marks_best=True), Series("b", [(1, nan), (2, 2.0)])]
    )
    assert points(made.spec) == [(1, 1), (3, 0.5), (2, 2)]
    assert "a: omitted 2 values that are not finite." in made.remarks
    assert best(made)[0]["text"] == "best 1.0000"


def test_a_long_line_keeps_its_ends_and_extremes() -> None:
    size = 4 * POINTS
    values = np.sin(np.arange(size) / 50)
    values[[777, 1234]] = 9, -9
    made = line_chart("Loss", [Series("a", list(enumerate(values.tolist())))])
    kept = points(made.spec)
    assert len(kept) <= POINTS
    assert {(0, 0.0), (777, 9), (1234, -9), (size - 1, values[-1])} <= set(kept)
    assert kept == [(x, values[x]) for x in sorted(x for x, _ in kept)]
    assert list(made.remarks) == [f"a: {len(kept)} of 2,000 points, with all extremes."]


def test_marks_and_levels_are_drawn_and_many_lines_differ() -> None:
    lines_ = [Series(f"run {at}", [(0, 1.0), (10, 0.5)]) for at in range(LINES)]
    marks = [Mark(1, "phase 1"), Mark(9, "phase 2"), Mark(4, "✕", "bad step: skip")]
    made = line_chart("Loss", lines_, marks=marks, levels=[(1.0, "start")])
    found = best(made)
    assert [(row["text"], row.get("align")) for row in found] == [
        ("start", None), ("phase 1", "left"), ("phase 2", "right"), ("✕", None)
    ]  # fmt: skip
    assert made.label.endswith("; start 1.0000")
    line = lines(made)["layer"][0]["encoding"]["strokeDash"]["scale"]["range"]
    colours = lines(made)["encoding"]["color"]["scale"]["range"]
    assert len({(str(dash), colour) for dash, colour in zip(line, colours, strict=True)}) == LINES


def test_a_path_keeps_its_order_and_end() -> None:
    steps = [(float(at % 7), -float(at)) for at in range(4 * POINTS + 1)]
    made = path_chart("a", [Series("run", steps)], x_label="x", y_label="y", remark="")
    kept = points(made.spec)
    assert len(kept) <= POINTS + 2
    assert [y for _, y in kept] == sorted((y for _, y in kept), reverse=True)
    assert (kept[0], kept[-1]) == (steps[0], steps[-1])
    assert "run ends at 5" in made.label


def test_bars_are_stacked_and_described() -> None:
    made = bar_chart("HBM", [("v3", {"held": 1.0, "free": 3.0}), ("v4", {"held": 2})], unit="GiB")
    values = made.spec["data"]["values"]
    assert [(row["bar"], row["part"], row["value"]) for row in values] == [
        ("v3", "held", 1.0),
        ("v3", "free", 3.0),
        ("v4", "held", 2.0),
    ]
    assert made.spec["encoding"]["color"]["scale"]["domain"] == ["held", "free"]
    assert made.label == "HBM, GiB: v3 4.0000 (held 1.0000, free 3.0000); v4 2 (held 2)"


def test_a_histogram_has_every_count_between_its_edges() -> None:
    made = histogram("t", [1, 0, 99999], edges=[1, 11, 21, 31], x_label="tokens")
    assert made.spec["data"]["values"] == [
        {"x": 1, "end": 11, "last": 10, "y": 1},
        {"x": 11, "end": 21, "last": 20, "y": 0},
        {"x": 21, "end": 31, "last": 30, "y": 99999},
    ]
    (bars,) = made.spec["layer"]
    assert bars["encoding"]["y"]["axis"]["values"] == [0, 1, 10, 100, 1000, 10000]
    assert made.label == "t: 3 bars from 1 to 30, the highest from 21: 99,999"
    shares = histogram("t", [2, 7], edges=[0.5, 0.75, 1.0], x_label="p", mark=(0.9, "threshold"))
    assert shares.spec["layer"][1]["data"]["values"] == [{"x": 0.9, "name": "threshold"}]
    assert shares.label.endswith("from 0.5000 to 1.0000, the highest from 0.7500: 7; "
                                 "threshold at 0.9000")  # fmt: skip
