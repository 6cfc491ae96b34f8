"""Pretrains a small model with every objective at equal FLOPs, and fine-tunes each.

    python -m benchmarks.objectives --corpus 'text/*.txt' --glue glue --into objectives

MLM with next sentence, MLM, ELECTRA, ALBERT, left to right followed by MLM, and distillation, with
several budgets and seeds; then SST-2 and MRPC from each. The same command resumes a stopped one:
finished runs are kept in --into. It prints the table, and writes ``results.jsonl``, a JSON object
per pretraining run: FLOPs by the objective's own formula, scores and seconds.
"""

import argparse
import sys
from pathlib import Path

from benchmarks import glibc
from benchmarks.marked_table import insert
from benchmarks.objectives.page import MARK, plot, table
from benchmarks.objectives.settings import load_study
from benchmarks.objectives.study import Study
from benchmarks.svg_plot import pyplot
from bert_jax.errors import RunStopped, UserError


def main(arguments: list[str] | None = None) -> None:
    """Runs the command. `arguments` are the command line's by default."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--corpus", nargs="+", required=True, help="files or patterns of text")
    parser.add_argument("--glue", type=Path, required=True, help="directory with SST-2 and MRPC")
    parser.add_argument("--into", type=Path, required=True, help="directory of runs and results")
    parser.add_argument("--settings", type=Path, help="YAML with settings; see settings.py")
    parser.add_argument("--page", type=Path, help=f"page with a table marked <!-- {MARK} -->")
    parser.add_argument("--plot", type=Path, help="SVG to write; needs matplotlib")
    asked = parser.parse_args(arguments)
    try:
        compare(asked)
    except (UserError, RunStopped) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def compare(asked: argparse.Namespace) -> None:
    """Runs the comparison and writes its results. Raises the errors of `Study.run`."""
    study = load_study(asked.settings)
    if asked.plot is not None:
        pyplot()  # fails before the runs, not after them
    runs = Study(study, asked.into, corpus=asked.corpus, glue=asked.glue)
    records = runs.run()
    lines = list(table(study, records))
    print("\n".join(lines))
    if asked.page is not None:
        insert(asked.page, MARK, lines)
    if asked.plot is not None:
        plot(study, records, asked.plot)


if __name__ == "__main__":
    glibc.with_large_pages("benchmarks.objectives")
    main()
