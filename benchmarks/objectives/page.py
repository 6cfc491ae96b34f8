"""The results of the comparison as a Markdown table and as a plot."""

import datetime
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.marked_table import line
from benchmarks.objectives.settings import StudySection
from benchmarks.objectives.study import ObjectiveRecord
from benchmarks.report import machine, versions
from benchmarks.significance import Spread
from benchmarks.svg_plot import pyplot, save

MARK: Final = "objectives"
# Metric of the held-out rows that shows what an objective learned.
_LEARNED: Final = {"electra": "replaced_auc"}
_COLOURS: Final = ("#1f4e79", "#c0504d", "#5b8c5a", "#8064a2", "#d79b00", "#4bacc6")


def table(study: StudySection, records: Sequence[ObjectiveRecord]) -> Iterator[str]:
    """Yields the lines of the table: a row per objective and budget, with the seeds' spread."""
    today, packages = datetime.datetime.now(datetime.UTC).date(), versions(("jax",))
    hours = sum(record.seconds + record.finetune_seconds for record in records) / 3600
    yield (
        f"{today}, {machine()['cores']} cores ({machine()['cpu']}), jax {packages['jax']}, "
        f"{hours:.1f} hours in all. {study.layers} layers of width {study.hidden_size}, "
        f"{study.batch_size} rows of {study.seq_length} tokens, {len(study.seeds)} seeds: mean ± "
        "standard deviation."
    )
    yield ""
    tasks = [f"{task}, {section.metric}" for task, section in study.tasks.items()]
    heads = ("FLOPs", "Objective", "Steps", "Held out", *tasks, "Pretraining", "Fine-tuning")
    yield line(heads)
    yield line("---" for _ in heads)
    for budget in study.budgets:
        for name in study.objectives:
            if found := [r for r in records if (r.objective, r.budget) == (name, budget)]:
                yield line(_row(study, name, found))


def _row(study: StudySection, name: str, found: Sequence[ObjectiveRecord]) -> Iterator[str]:
    def mean(value: Callable[[ObjectiveRecord], float]) -> Spread:
        return Spread.of([value(record) for record in found])

    metric = _LEARNED.get(name, "mlm_loss")
    yield f"{mean(lambda record: record.flops).mean:.3g}"
    yield name
    yield f"{found[0].steps:,}"
    yield f"{metric} {mean(lambda record: record.validation[-1][metric]).text()}"
    for task, section in study.tasks.items():
        yield Spread.of([100 * record.scores[task][section.metric] for record in found]).text(1)
    yield f"{mean(lambda record: record.seconds).mean:.0f} s"
    yield f"{mean(lambda record: record.finetune_seconds).mean:.0f} s"


def plot(study: StudySection, records: Sequence[ObjectiveRecord], path: Path) -> None:
    """Writes an SVG: a panel per task, score against FLOPs, with the range of the seeds.

    Raises UserError if matplotlib is not installed.
    """
    plt = pyplot()
    figure, axes = plt.subplots(
        *(1, len(study.tasks)), figsize=(4.2 * len(study.tasks), 3.2), layout="constrained"
    )
    panels = [axes] if len(study.tasks) == 1 else list(axes)
    for axis, (task, section) in zip(panels, study.tasks.items(), strict=True):
        for at, name in enumerate(study.objectives):
            points = _points(records, name, task, section.metric)
            # Shift the points of a budget, so that their ranges do not overlap.
            shift = 1.03 ** (at - len(study.objectives) / 2)
            flops = [shift * each[0] for each in points]
            means = [sum(each[1]) / len(each[1]) for each in points]
            low = [mean - min(each[1]) for mean, each in zip(means, points, strict=True)]
            high = [max(each[1]) - mean for mean, each in zip(means, points, strict=True)]
            colour = _COLOURS[at % len(_COLOURS)]
            axis.errorbar(
                *(flops, means), yerr=[low, high], marker="o", capsize=2, color=colour, label=name
            )
        axis.set_xscale("log")
        axis.set_xlabel("FLOPs of pretraining")
        axis.set_title(f"{task}: {section.metric}", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    save(figure, path)


def _points(
    records: Sequence[ObjectiveRecord], name: str, task: str, metric: str
) -> list[tuple[float, list[float]]]:
    """Returns the FLOPs and the seeds' scores of each budget."""
    mine = [record for record in records if record.objective == name]
    return [
        (
            max(record.flops for record in mine if record.budget == budget),
            [100 * record.scores[task][metric] for record in mine if record.budget == budget],
        )
        for budget in sorted({record.budget for record in mine})
    ]
