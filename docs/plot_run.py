"""Plots the loss curves of the demo and of its 2018 recipe.

``python docs/plot_run.py runs/demo runs/demo-2018 docs/demo-loss.svg``. The second directory is a
demo with the settings in docs/measurements.md. Needs ``pip install matplotlib``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.train.metrics_writer import read_metrics


def main(demo: str, old: str, output: str) -> None:
    """Plots MLM loss and NSP accuracy on held-out text of the demos below two directories."""
    entropy = read_provenance(Path(demo) / "dataset").corpus.unigram_entropy
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bert_jax", "font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.9), layout="constrained")
    runs = {
        "ModernBERT's layers, Muon": (demo, "#1f4e79"),
        "BERT's layers, AdamW": (old, "#c2703d"),
    }
    for axis, name in zip(axes, ("mlm_loss", "nsp_accuracy"), strict=True):
        for label, (directory, color) in runs.items():
            run = Path(directory) / "run"
            train, held_out = read_metrics(run, kind="train"), read_metrics(run, kind="validation")
            axis.plot(*columns(train, name), color=color, alpha=0.35)
            axis.plot(*columns(held_out, name), "o-", color=color, label=label)
        axis.set_xlabel("step")
        axis.spines[["top", "right"]].set_visible(False)
    left, right = axes
    left.axhline(entropy, color="#888", linestyle="--", linewidth=1)
    left.annotate(
        f"unigram entropy {entropy:.2f}",
        (1, entropy),
        (0, 4),
        ha="right",
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        color="#666",
    )
    left.set_title("masked words: loss (nats)", fontsize=9)
    right.set_title("next sentence: accuracy", fontsize=9)
    left.legend(frameon=False, title="points: held out", alignment="left")
    figure.savefig(output, metadata={"Date": None})


def columns(lines: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Returns steps and values."""
    return [line["step"] for line in lines], [line[name] for line in lines]


if __name__ == "__main__":
    main(*sys.argv[1:])
