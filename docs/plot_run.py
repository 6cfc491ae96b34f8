"""Plots a run's loss curve: ``python docs/plot_run.py runs/demo docs/demo-loss.svg``.

Needs ``pip install matplotlib``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.train.metrics_writer import read_metrics


def main(demo_dir: str, output: str) -> None:
    """Plots MLM loss and NSP accuracy of the demo below `demo_dir`."""
    run = Path(demo_dir) / "run"
    entropy = read_provenance(Path(demo_dir) / "dataset").corpus.unigram_entropy
    train, held_out = read_metrics(run, kind="train"), read_metrics(run, kind="validation")
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bert_jax", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.9), layout="constrained")
    for axis, name in ((left, "mlm_loss"), (right, "nsp_accuracy")):
        axis.plot(*columns(train, name), color="#8fb3d9", label="training")
        axis.plot(*columns(held_out, name), "o-", color="#1f4e79", label="held out")
        axis.set_xlabel("step")
        axis.spines[["top", "right"]].set_visible(False)
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
    left.legend(frameon=False)
    figure.savefig(output, metadata={"Date": None})


def columns(lines: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Returns steps and values."""
    return [line["step"] for line in lines], [line[name] for line in lines]


if __name__ == "__main__":
    main(*sys.argv[1:])
