"""Runs a tier of the BERT speedrun, checks the rules, and adds rows to the record table.

    python -m benchmarks.speedrun laptop --corpus TEXT --glue GLUE --into runs/speedrun

Repeat the command to resume: finished runs are kept. ``--recipe FILE`` enters another recipe than
the tier's. ``--configs`` writes the configurations of the next runs instead of starting them, for
runs on other machines (`bert-jax submit`); repeat it when they have finished. The rules are in
``docs/speedrun.md``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.finished_runs import RunFolder
from benchmarks.speedrun import page
from benchmarks.speedrun.corpus import check_corpus
from benchmarks.speedrun.plot import plot
from benchmarks.speedrun.recipes import Recipes
from benchmarks.speedrun.rules import check_runs, check_task
from benchmarks.speedrun.stages import REFERENCE, STAGES, Speedrun
from benchmarks.speedrun.tier import load_tier
from benchmarks.svg_plot import pyplot
from bert_jax.config import load_config
from bert_jax.errors import KeyedError, RunStopped

PAGE = Path(__file__).parents[2] / "docs" / "speedrun.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 1 a run stopped, 2 a broken rule."""
    asked = _parser().parse_args(arguments)
    try:
        run(asked)
    except KeyedError as error:
        print(f"speedrun: {error.line()}", file=sys.stderr)
        return 1 if isinstance(error, RunStopped) else 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speedrun",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("tier", help="laptop, chip, pod, or a YAML file")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the text")
    parser.add_argument("--glue", type=Path, help="folder of the fine-tuning tasks")
    parser.add_argument("--into", type=Path, required=True, help="directory of all output")
    parser.add_argument("--recipe", help="configuration to enter instead of the tier's")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the record table")
    parser.add_argument("--plot", type=Path, help="SVG file; needs matplotlib")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--configs", action="store_true", help="write configurations only")
    return parser


def run(asked: argparse.Namespace) -> None:
    """Runs the selected stages. Raises UserError if a rule is broken."""
    if asked.plot:
        pyplot()  # fails before the runs, not after them
    tier = load_tier(asked.tier)
    corpus = check_corpus(asked.corpus, tier.corpus)
    recipes, folder = Recipes(tier, asked.corpus, asked.into), RunFolder(asked.into)
    recipes.make_tokenizer()
    entered = load_config(asked.recipe) if asked.recipe else tier.recipe.load()
    name = Path(asked.recipe or tier.recipe.config).stem
    speedrun = Speedrun(tier, recipes, folder, name=name, recipe=entered)
    tuned = speedrun.tune(only_configs=asked.configs)
    for recipe, found in tuned.items():
        trials = {f"{rate:g}": round(of.loss, 3) for rate, of in found.trials.items()}
        print(f"{recipe}: learning rate x {found.rate:g} of {trials}")
    mark = f"speedrun {Path(asked.tier).stem}"
    if "runs" not in asked.stages:
        return
    runs = speedrun.runs(only_configs=asked.configs)
    verdict = check_runs(tier, runs[REFERENCE], runs[name])
    print(f"target {verdict.target.text()}, {name} {verdict.loss.text()}, p {verdict.p:.2g}")
    tasks = {}
    if asked.glue and "finetune" in asked.stages:
        scores = speedrun.finetune(asked.glue)
        tasks = {task: check_task(found, REFERENCE, name) for task, found in scores.items()}
    rows = page.record_rows(
        name, tier, corpus=corpus, runs=runs, verdict=verdict, tuned=tuned, tasks=tasks
    )
    page.add_rows(asked.page, mark, rows)
    shown = dict(runs)
    if "ablation" in asked.stages:
        found = speedrun.ablation(only_configs=asked.configs)
        page.insert(asked.page, f"{mark} ablation", page.ablation_rows(runs[REFERENCE], found))
        shown |= found
    if asked.plot:
        plot(asked.plot, tier.title, shown, verdict.target.mean)


if __name__ == "__main__":
    sys.exit(main())
