"""Adapts a checkpoint to a domain at equal FLOPs, and measures what it learns and forgets.

    python -m benchmarks.adapt --start runs/start --domain data/domain --general data/general \
      --into runs/adapt --plot docs/adapt.svg --page docs/results/adapt.md

Masked tokens alone, with replay of general text, with a causal phase before, and with both, for
several seeds. Every run is also measured with the moving average of its parameters, and the first
two merged with the start. ``results.jsonl`` in --into has a JSON object per measurement. The same
command resumes a stopped one.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from rich.console import Console

import bert_jax
from benchmarks.equal_flops import SOURCE, all_flops_per_row, rows_until, total_flops, with_flops
from benchmarks.finished_runs import RunFolder, seconds_of
from benchmarks.marked_table import insert, line
from benchmarks.significance import Spread
from benchmarks.svg_plot import pyplot, save
from bert_jax.config import RunConfig, load_config, parse_config
from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import write_whole
from bert_jax.section import Section, need

ARMS: Final = ("masked", "replay", "detour", "both")
SWEPT: Final = ("masked", "detour")
AVERAGED: Final = ("masked", "replay")
MERGED: Final = ("masked",)
STARTS: Final = ("0.25", "0.5", "0.75")
"""Weights of the start in a merged model."""
MARK: Final = "adapt"
_STEPS: Final = 1000  # before they are scaled to the budget
_COLOURS: Final = ("#1f4e79", "#c0504d", "#5b8c5a", "#8064a2")


class Measured(Section):
    """The losses of one model on both held-out splits."""

    arm: str
    """A key of `ARMS`, or ``start``."""
    weights: str
    """Parameters: ``last``, ``ema``, the start's weight in a merged model, or ``sweep``."""
    seed: int
    """Seed of the run."""
    rate: float
    """Peak learning rate."""
    domain: float
    """MLM loss on the domain's held-out split."""
    general: float
    """MLM loss on the held-out split of general text."""
    rows: tuple[int, ...] = ()
    """Rows of each phase."""
    flops: float = 0.0
    """Model FLOPs of the run, see `benchmarks.equal_flops.total_flops`."""
    seconds: float = 0.0
    """Wall time of the run."""


class Study:
    """The runs and measurements in one directory."""

    def __init__(self, asked: argparse.Namespace) -> None:
        """Reads the measurements so far. `asked`: the command line."""
        self._asked, self._folder = asked, RunFolder(asked.into)
        self._path = asked.into / "results.jsonl"
        self.records = read_records(self._path) if self._path.exists() else []

    def run(self) -> None:
        """Makes all missing measurements: the start, the sweep, then the arms of every seed."""
        seeds = self._asked.seeds
        self._measure(self._asked.start, arm="start", weights="last", seed=0, rate=0.0)
        for rate in self._asked.rates:
            for arm in SWEPT:
                facts, run_dir = self._run(arm, seeds[0], rate, ema=None)
                self._measure(run_dir, **facts, weights="sweep")
        rate = best_rate(self.records)
        for seed in seeds:
            for arm in ARMS:
                facts, run_dir = self._run(arm, seed, rate, ema=self._asked.ema)
                self._measure(run_dir, **facts, weights="last")
                if arm in AVERAGED:
                    self._measure(run_dir, **facts, weights="ema")
                for share in STARTS if arm in MERGED else ():
                    merged = f"{run_dir}-{share}"
                    if not Path(merged).exists():
                        weights = [float(share), 1 - float(share)]
                        bert_jax.average([self._asked.start, run_dir], merged, weights=weights)
                    self._measure(merged, **facts, weights=share)

    def _run(
        self, arm: str, seed: int, rate: float, *, ema: float | None
    ) -> tuple[dict[str, Any], str]:
        """Trains one run, unless it is finished. Returns its facts and its directory."""
        name = f"{'sweep-' * (ema is None)}{arm}-{rate:g}-seed{seed}"
        config = self.config(arm, name, seed=seed, rate=rate, ema=ema)
        self._folder.pretrain(name, config, init_from=self._asked.start)
        run_dir = self._folder.run_dir(name)
        steps = need(config.train, "train", "pretrain").total_steps
        facts = {
            "arm": arm,
            "seed": seed,
            "rate": rate,
            "rows": tuple(rows_until(config, steps)),
            "flops": total_flops(config),
            "seconds": round(seconds_of(run_dir), 1),
        }
        jax.clear_caches()  # the next run compiles other programs
        return facts, str(run_dir)

    def _measure(self, model: str, **facts: Any) -> None:
        """Adds the losses of a model, unless they are known."""
        names = ("arm", "weights", "seed", "rate")
        if any(all(getattr(r, name) == facts[name] for name in names) for r in self.records):
            return
        for name in ("domain", "general"):
            dataset, ema = getattr(self._asked, name), facts["weights"] == "ema"
            found = bert_jax.evaluate(model, dataset=dataset, ema=ema, console=Console(quiet=True))
            facts[name] = found.scores["mlm_loss"]
        self.records.append(Measured.model_validate(facts))
        text = [f"{record.model_dump_json()}\n" for record in self.records]
        print(text[-1], end="", flush=True)
        write_whole(self._path, "".join(text))

    def config(
        self, arm: str, name: str, *, seed: int, rate: float, ema: float | None
    ) -> RunConfig:
        """Returns the configuration of a run with the budget's FLOPs.

        The rate is constant and then decays by 1 - sqrt over the last half of the FLOPs. A causal
        phase takes the first half of them.
        """
        asked = self._asked
        dataset = {asked.domain: 1 - asked.replay, asked.general: asked.replay}
        phase = {
            "dataset": dataset if arm in ("replay", "both") else asked.domain,
            "steps": _STEPS,
            "seq_length": asked.seq_length,
            "batch_size": asked.batch_size,
        }
        start = load_config(Path(asked.start) / "config.yaml").model_dump(mode="json")
        model = {name: start["model"][name] for name in ("kind", "architecture", "execution")}
        values: dict[str, Any] = {
            "seed": seed,
            "run_dir": str(self._folder.run_dir(name)),
            "tokenizer": str(Path(asked.start) / "tokenizer"),
            "mesh": {"platform": "cpu"},
            "model": model,
            "objective": {"kind": "roberta"},
            "optimizer": {
                "learning_rate": rate,
                "warmup_steps": _STEPS // 20,
                "decay_fraction": 0.5,
                "decay": "1-sqrt",
                "beta2": 0.98,
                "bias_correction": True,
            },
            "train": {
                "phases": [phase],
                "log_every": 20,
                "evaluation": None,
                "checkpoint": {"every": _STEPS},
            },
        }
        if ema is not None:
            values["train"]["ema"] = {"decay": ema, "evaluate": False}
        if arm in ("detour", "both"):
            values["train"]["phases"] = [phase | {"objective": {"kind": "causal"}}, phase]
            causal, masked = all_flops_per_row(parse_config(values, source=SOURCE))
            values["train"]["phases"][0]["steps"] = round(_STEPS * masked / causal)
            values["optimizer"]["decay_fraction"] = 1 / (1 + masked / causal)
        return parse_config(with_flops(values, asked.budget), source=SOURCE)


def read_records(path: Path) -> list[Measured]:
    """Returns the measurements of a ``results.jsonl``. The first is the start's."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Measured.model_validate_json(line) for line in lines]


def best_rate(records: Sequence[Measured]) -> float:
    """Returns the rate with which masked tokens alone reach the lowest loss on the domain."""
    found = [record for record in records if (record.arm, record.weights) == ("masked", "sweep")]
    return min(found, key=lambda record: record.domain).rate


def of(records: Sequence[Measured], arm: str, weights: str) -> list[Measured]:
    """Returns the measurements of all seeds."""
    rate = best_rate(records)
    return [r for r in records if (r.arm, r.weights, r.rate) == (arm, weights, rate)]


def table(records: Sequence[Measured]) -> Iterator[str]:
    """Yields the lines of the table: a row per arm and kind of parameters."""
    start = records[0]
    yield line(("Model", "Rows", "Domain", "Change", "General", "Change"))
    yield line("---" for _ in range(6))
    yield line(("start", "", f"{start.domain:.3f}", "", f"{start.general:.3f}", ""))
    rows = {
        label(arm, weights): of(records, arm, weights)
        for arm, weights in itertools.product(ARMS, ("last", "ema", *STARTS))
    }
    for record in records:
        if record.weights == "sweep":
            rows[f"{record.arm}, rate {record.rate:g}, one seed"] = [record]
    for text, found in rows.items():
        if found:
            cells = [text, " + ".join(f"{count:,}" for count in found[0].rows)]
            for name in ("domain", "general"):
                spread = Spread.of([getattr(record, name) for record in found])
                loss = spread.text() if len(found) > 1 else f"{spread.mean:.3f}"
                cells += [loss, f"{spread.mean - getattr(start, name):+.3f}"]
            yield line(cells)


def label(arm: str, weights: str) -> str:
    """Returns the name of a model: ``replay, moving average``."""
    more = {"last": "", "ema": ", moving average"}
    return arm + more.get(weights, f", {weights} of the start")


def plot(records: Sequence[Measured], path: Path) -> None:
    """Writes an SVG: the change of the general loss against the change of the domain's.

    Raises UserError if matplotlib is not installed.
    """
    plt, start = pyplot(), records[0]
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")

    def changes(arm: str, weights: str) -> tuple[list[float], list[float]]:
        found = of(records, arm, weights)
        return [r.domain - start.domain for r in found], [r.general - start.general for r in found]

    axis.plot(0, 0, "k*", markersize=9, label="start")
    for arm, colour in zip(ARMS, _COLOURS, strict=True):
        style = {"color": colour, "linestyle": "none"}
        axis.plot(*changes(arm, "last"), marker="o", label=arm, **style)
        if arm in AVERAGED:
            hollow = {"markerfacecolor": "none", "label": label(arm, "ema")}
            axis.plot(*changes(arm, "ema"), marker="^", **hollow, **style)
        if arm in MERGED:
            line = [np.mean(changes(arm, weights), axis=1) for weights in ("last", *STARTS)]
            x, y = zip(*line, (0, 0), strict=True)
            axis.plot(x, y, ".-", color=colour, alpha=0.4, label=f"{arm}, merged with the start")
    axis.axhline(0, color="#888", linestyle="--", linewidth=1)
    axis.set_xlabel("domain: change of the MLM loss (nats)")
    axis.set_ylabel("general text: change (nats)")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right center", frameon=False)
    save(figure, path)


def command_line() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--start", required=True, help="run directory of the checkpoint")
    parser.add_argument("--domain", required=True, help="dataset of the domain")
    parser.add_argument("--general", required=True, help="dataset of general text")
    parser.add_argument("--into", type=Path, required=True, help="directory of runs and results")
    parser.add_argument("--budget", type=float, default=4e12, help="model FLOPs of a run")
    parser.add_argument("--replay", type=float, default=0.2, help="share of general rows")
    parser.add_argument("--ema", type=float, default=0.98, help="decay of the moving average")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--seq-length", type=int, default=128, help="tokens per row")
    parser.add_argument("--batch-size", type=int, default=32, help="rows per step")
    parser.add_argument("--page", type=Path, help=f"page with a table marked <!-- {MARK} -->")
    parser.add_argument("--plot", type=Path, help="SVG to write; needs matplotlib")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Runs the command. `arguments` are the command line's by default."""
    try:
        compare(command_line().parse_args(arguments))
    except (UserError, RunStopped) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def compare(asked: argparse.Namespace) -> None:
    """Runs the study and writes its results. Raises UserError or RunStopped, as its runs do."""
    if asked.plot is not None:
        pyplot()  # fails before the runs, not after them
    study = Study(asked)
    study.run()
    lines = list(table(study.records))
    print("\n".join(lines))
    if asked.page is not None:
        insert(asked.page, MARK, lines)
    if asked.plot is not None:
        plot(study.records, asked.plot)


if __name__ == "__main__":
    main()
