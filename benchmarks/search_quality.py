"""Trains each kind of search model for the same time, and searches one corpus with all of them.

    python -m benchmarks.search_quality --start runs/start --text wiki/* --into runs/search \
      --minutes 1 --page docs/results/search.md

The corpus is made of paragraphs: the first sentence is the query, the rest is its passage. BM25 is
`bm25s` (pip install bm25s). The reranker learns from passages that the dense model of the same seed
finds by mistake, and reranks the first passages of BM25 and of the dense model. nDCG@10 is
pytrec_eval's. ``results.jsonl`` in --into has a JSON object per measurement; the same command
continues it.
"""

import argparse
import importlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytrec_eval
from rich.console import Console

import bert_jax
from benchmarks.marked_table import insert, line
from benchmarks.significance import Spread
from bert_jax.config import parse_config
from bert_jax.files.atomic import write_whole
from bert_jax.section import Section
from bert_jax.train.time_account import read_goodput

TEXTS: Final = {"anchor": "query", "positive": "passage"}
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "dense": {"kind": "embedding", **TEXTS},
    "sparse": {"kind": "sparse", **TEXTS},
    "late interaction": {"kind": "late_interaction", **TEXTS},
}
RATES: Final = {"dense": 1e-3, "sparse": 1e-3, "late interaction": 1e-3, "reranker": 1e-3}
QUERIES: Final = 500  # held-out queries
RERANKED: Final = 20  # passages of a query
NEGATIVES: Final = 4  # of a query, for the reranker
LENGTH: Final = 96  # tokens of a text
MARK: Final = "search"
_PROBE: Final = 640  # rows of the run that measures the time of a row
_FOUND: Final = 100  # passages of a query that are scored


class Measured(Section):
    """nDCG@10 of one way to search, with one seed."""

    arm: str
    """A key of `KINDS`, or ``BM25``, or one of these with ``, reranked``."""
    seed: int
    """Seed of the training."""
    ndcg: float
    """nDCG@10 over the held-out queries."""
    seconds: float
    """Seconds of training, without compilation."""
    rows: int
    """Rows of training, counted as often as they were seen."""


class Pair(NamedTuple):
    """A query and the passage that it belongs to."""

    query: str
    passage: str


def read_pairs(files: Sequence[Path], *, limit: int) -> list[Pair]:
    """Returns pairs of the paragraphs of files in WikiExtractor's format, in random order."""
    found = {}
    for file in files:
        for document in re.findall(r"<doc[^>]*>\n(.*?)</doc>", file.read_text("utf-8"), re.S):
            for paragraph in document.split("\n\n")[1:]:
                query, _, passage = " ".join(paragraph.split()).partition(". ")
                if 5 <= len(query.split()) <= 40 and len(passage.split()) >= 20:
                    found[passage] = Pair(query, passage)
    pairs = list(found.values())
    random.Random(0).shuffle(pairs)
    return pairs[:limit]


class Study:
    """The corpus, the runs and the measurements of the study."""

    def __init__(self, asked: argparse.Namespace) -> None:
        """Reads the corpus."""
        self._asked, self._into, self._console = asked, asked.into, Console()
        pairs = read_pairs(asked.text, limit=asked.pairs)
        self._held, self._train = pairs[:QUERIES], pairs[QUERIES:]
        self._passages = [pair.passage for pair in pairs]
        self._into.mkdir(parents=True, exist_ok=True)
        self._console.print(f"{len(self._train):,} training pairs, {len(pairs):,} passages")

    def run(self) -> list[Measured]:
        """Measures what is missing."""
        lexical = self._lexical()
        if self._missing("BM25", 0):
            self._record("BM25", 0, lexical, (0.0, 0))
        for seed in range(self._asked.seeds):
            dense = {}
            for arm in KINDS:
                if not (again := self._missing(arm, seed)) and arm != "dense":
                    continue
                spent = self._trained(arm, seed, self._train)
                found = self._search(arm, seed, self._held)
                dense = found if arm == "dense" else dense
                if again:
                    self._record(arm, seed, found, spent)
            if self._missing("BM25, reranked", seed):
                lists = self._with_negatives(seed)
                spent = self._trained("reranker", seed, lists)
                for arm, first in (("BM25", lexical), ("dense", dense)):
                    self._record(f"{arm}, reranked", seed, self._rerank(first, seed), spent)
        return self._records()

    def _lexical(self) -> dict[int, dict[int, float]]:
        bm25s = importlib.import_module("bm25s")  # no requirement of this repository
        index = bm25s.BM25()
        index.index(bm25s.tokenize(self._passages, stopwords="en", show_progress=False))
        asked = bm25s.tokenize(
            [pair.query for pair in self._held], stopwords="en", show_progress=False
        )
        numbers, scores = index.retrieve(asked, k=_FOUND, show_progress=False)
        return {
            query: dict(zip(numbers[query].tolist(), scores[query].tolist(), strict=True))
            for query in range(len(numbers))
        }

    def _trained(self, arm: str, seed: int, rows: Sequence[Any]) -> tuple[float, int]:
        """Trains a model for the given minutes. Returns seconds and rows."""
        probe = self._into / f"{arm}-probe".replace(" ", "-")
        if not probe.exists():
            self._fine_tune(arm, 0, rows[:_PROBE], 1, probe)
        wanted = int(self._asked.minutes * 60 * _PROBE / seconds_of(probe))
        epochs = -(-wanted // len(rows))
        chosen = rows[: wanted // epochs]
        run = self._model(arm, seed)
        self._fine_tune(arm, seed, chosen, epochs, run)
        return seconds_of(run), epochs * len(chosen)

    def _fine_tune(self, arm: str, seed: int, rows: Sequence[Any], epochs: int, run: Path) -> None:
        """Trains a model, unless it is trained already."""
        table = run.with_suffix(".jsonl")
        if arm == "reranker":
            names = [f"negative_{number}" for number in range(1, NEGATIVES + 1)]
            task = {"kind": "rerank", "query": "query", "document": "passage", "negatives": names}
            task["loss"] = {"kind": "list_net"}
        else:
            task, rows = dict(KINDS[arm]), [pair._asdict() for pair in rows]
        write_whole(table, "".join(json.dumps(row) + "\n" for row in rows))
        settings = {
            "seed": seed,
            "run_dir": str(run),
            "finetune": {
                "init_from": str(self._asked.start),
                "task": {**task, "train": str(table), "dev_fraction": 0.02},
                "max_length": LENGTH * (2 if arm == "reranker" else 1),
                "batch_size": 32,
                "epochs": epochs,
                "optimizer": {"learning_rate": RATES[arm]},
            },
        }
        bert_jax.finetune(parse_config(settings), console=self._console)

    def _model(self, arm: str, seed: int) -> Path:
        return self._into / f"{arm}-{seed}".replace(" ", "-")

    def _search(self, arm: str, seed: int, pairs: Sequence[Pair]) -> dict[int, dict[int, float]]:
        """Returns the best passages of each query, with their similarities."""
        model = bert_jax.load(self._model(arm, seed))
        scores = model.similarity([pair.query for pair in pairs], self._passages)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :_FOUND]
        return {
            query: {int(at): float(scores[query, at]) for at in best[query]}
            for query in range(len(pairs))
        }

    def _with_negatives(self, seed: int) -> list[dict[str, str]]:
        """Returns rows with passages that the dense model finds for the wrong query."""
        table, mined = (self._into / f"{name}-{seed}.jsonl" for name in ("pairs", "mined"))
        pairs = self._train[: self._asked.mined]
        write_whole(table, "".join(json.dumps(pair._asdict()) + "\n" for pair in pairs))
        bert_jax.mine(
            str(self._model("dense", seed)),
            str(table),
            str(mined),
            anchor="query",
            positive="passage",
            negatives=NEGATIVES,
            ranks="0:20",
            sample="random",
            force=True,
            console=self._console,
        )
        return [json.loads(each) for each in mined.read_text().splitlines()]

    def _rerank(
        self, first: Mapping[int, Mapping[int, float]], seed: int
    ) -> dict[int, dict[int, float]]:
        """Returns the first passages of each query with the reranker's scores."""
        model, found = bert_jax.load(self._model("reranker", seed)), {}
        for query, scores in first.items():
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:RERANKED]
            ranked = model.rank(self._held[query].query, [self._passages[at] for at in best])
            found[query] = {best[each.document]: each.score for each in ranked}
        return found

    def _record(
        self,
        arm: str,
        seed: int,
        found: Mapping[int, Mapping[int, float]],
        spent: tuple[float, int],
    ) -> None:
        # The first passages belong to the held-out queries.
        judged = {str(query): {str(query): 1} for query in range(len(self._held))}
        evaluator = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"})
        ranking = {
            str(query): {str(passage): score for passage, score in scores.items()}
            for query, scores in found.items()
        }
        scores = [each["ndcg_cut_10"] for each in evaluator.evaluate(ranking).values()]
        ndcg, (seconds, rows) = float(np.mean(scores)), spent
        record = Measured(arm=arm, seed=seed, ndcg=ndcg, seconds=seconds, rows=rows)
        with (self._into / "results.jsonl").open("a") as file:
            file.write(record.model_dump_json() + "\n")
        self._console.print(f"{arm}, seed {seed}: nDCG@10 {ndcg:.3f}, {seconds:.0f} s")

    def _records(self) -> list[Measured]:
        path = self._into / "results.jsonl"
        return read_records(path) if path.exists() else []

    def _missing(self, arm: str, seed: int) -> bool:
        return not any((each.arm, each.seed) == (arm, seed) for each in self._records())


def read_records(path: Path) -> list[Measured]:
    """Returns the measurements of a study."""
    return [Measured.model_validate_json(each) for each in path.read_text().splitlines()]


def seconds_of(run: Path) -> float:
    """Returns the seconds of training of a run, without compilation."""
    account = read_goodput(run)
    assert account is not None
    return account.seconds["train"]


def table(records: Sequence[Measured]) -> Iterator[str]:
    """Yields the lines of the table of the page."""
    yield line(["Search", "nDCG@10", "Training rows", "Seconds"])
    yield line(["---"] * 4)
    for arm in dict.fromkeys(each.arm for each in records):
        of = [each for each in records if each.arm == arm]
        score = Spread.of([each.ndcg for each in of])
        rows = f"{round(np.mean([each.rows for each in of])):,}"
        seconds = f"{np.mean([each.seconds for each in of]):.0f}"
        yield line([arm, score.text() if len(of) > 1 else f"{score.mean:.3f}", rows, seconds])


def main(arguments: list[str] | None = None) -> None:
    """Runs the study, and writes its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--start", type=Path, required=True, help="run from which all models start")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="WikiExtractor's files")
    parser.add_argument("--into", type=Path, required=True, help="directory of the study")
    parser.add_argument("--minutes", type=float, default=1.0, help="of training for each model")
    parser.add_argument("--pairs", type=int, default=10_000, help="largest number of pairs")
    parser.add_argument("--mined", type=int, default=4_000, help="pairs with negatives")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="page with the marks of the table")
    asked = parser.parse_args(arguments)
    lines = list(table(Study(asked).run()))
    Console().print("\n".join(lines))
    if asked.page is not None:
        insert(asked.page, MARK, lines)


if __name__ == "__main__":
    main()
