"""Plots as SVG files. Needs ``pip install matplotlib``."""

from pathlib import Path
from typing import Any

from bert_jax.errors import UserError


def pyplot() -> Any:
    """Returns matplotlib's pyplot. Raises UserError if it is not installed.

    Call it before the runs whose results will be plotted.
    """
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]

        matplotlib.use("svg")
        import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "benchmark.matplotlib",
            "not installed, but --plot needs it. Run pip install matplotlib.",
            place="matplotlib",
        ) from error
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bert_jax", "font.size": 9})
    return plt


def save(figure: Any, path: Path) -> None:
    """Writes a figure without its date, so that equal data give equal files, and closes it."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot().close(figure)
