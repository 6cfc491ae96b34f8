"""Plots MLM loss against FLOPs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.finished_runs import RunRecord
from benchmarks.svg_plot import pyplot, save


def plot(path: Path, title: str, found: Mapping[str, Sequence[RunRecord]], target: float) -> None:
    """Writes an SVG file: a line per recipe, the mean over its seeds, and the target.

    Raises UserError if matplotlib is not installed.
    """
    figure, axis = pyplot().subplots(figsize=(8.4, 4.2), layout="constrained")
    for at, (name, records) in enumerate(found.items()):
        points = list(zip(*(record.curve for record in records), strict=True))
        flops = [of_seeds[0].flops for of_seeds in points]
        losses = [sum(each.loss for each in of_seeds) / len(of_seeds) for of_seeds in points]
        wide = at < 2  # the two recipes
        axis.plot(flops, losses, "o-" if wide else "-", ms=3, lw=2 if wide else 1, label=name)
    axis.axhline(target, color="#888", linestyle="--", linewidth=1)
    axis.set(xlabel="FLOPs", ylabel="held-out MLM loss (nats)", title=title)
    axis.legend(frameon=False)
    save(figure, path)
