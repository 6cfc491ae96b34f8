"""Plots MLM loss against FLOPs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.finished_runs import RunRecord, mean_curve
from benchmarks.svg_plot import pyplot, save

COLOURS: Final = 10  # matplotlib's default colours; more lines repeat them


def plot(path: Path, title: str, found: Mapping[str, Sequence[RunRecord]], target: float) -> None:
    """Writes an SVG file: a line per recipe, the mean over its seeds, and the target.

    Raises UserError if matplotlib is not installed.
    """
    figure, axis = pyplot().subplots(figsize=(8.4, 4.2), layout="constrained")
    for at, (name, records) in enumerate(found.items()):
        points = list(mean_curve(records))
        flops = [measured.flops for measured, _ in points]
        losses = [loss.mean for _, loss in points]
        wide = at < 2  # the two recipes
        style = "o-" if wide else "-" if at < COLOURS else "--"
        axis.plot(flops, losses, style, ms=3, lw=2 if wide else 1, label=name)
    axis.axhline(target, color="#888", linestyle="--", linewidth=1)
    axis.set(xlabel="FLOPs", ylabel="held-out MLM loss (nats)", title=title)
    axis.legend(frameon=False)
    save(figure, path)
