"""`bert-jax mine`: pairs of texts → the same pairs with hard negatives."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pydantic
from etils import epath
from jax.sharding import Mesh
from rich.console import Console

from bert_jax.corpus.parts import files_below
from bert_jax.corpus.writing import open_part
from bert_jax.data.row_errors import RowErrors
from bert_jax.data.tables import read_table
from bert_jax.errors import SettingError, UserError, counted, one_of
from bert_jax.feature_extraction.texts import SUFFIXES, TextColumns, read_texts
from bert_jax.files.atomic import output_exists, require_other_file
from bert_jax.files.hub import is_dataset_file, local_file
from bert_jax.files.read import is_whole
from bert_jax.inference.bucketed import check_batch_size
from bert_jax.inference.comparison import comparison_of
from bert_jax.inference.nearest import QUERIES, TEXTS, NearestTexts
from bert_jax.interop.open_model import open_model
from bert_jax.loaded_model import LoadedModel
from bert_jax.narration import doing
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.lock import hold_output
from bert_jax.runs.settings import describe
from bert_jax.section import refuse_same_column
from bert_jax.tasks.family import no_rows
from bert_jax.tasks.search.mining import Mined, MiningRule, MiningTexts, mined, mining_texts
from bert_jax.tasks.search.tuples import TextTuple, TupleColumns, read_tuples

SCORES: Final = "scores"
_FORMATS: Final[dict[str, Literal["parquet", "jsonl"]]] = {".parquet": "parquet", ".jsonl": "jsonl"}
_ROWS_AT_ONCE: Final = 1 << 14
_RERANKED_AT_ONCE: Final = 1 << 14  # pairs
_SPARE: Final = 10  # candidates for each negative, if limits exclude some of them


class MiningResult(NamedTuple):
    """The result of `mine`."""

    output: Path
    rows: int
    dropped: int  # pairs with fewer negatives
    positive_score: float  # mean of the written rows
    negative_score: float


def mine(
    model: str,
    table: str,
    output: str,
    *,
    anchor: str = "anchor",
    positive: str = "positive",
    corpus: str | None = None,
    corpus_column: str = "text",
    negatives: Annotated[int, pydantic.Field(ge=1)] = 3,
    ranks: str | None = None,
    margin: float | None = None,
    relative_margin: float | None = None,
    min_score: float | None = None,
    max_score: float | None = None,
    sample: Literal["top", "random"] = "top",
    seed: int = 0,
    triplets: bool = False,
    reranker: str | None = None,
    batch_size: int = 32,
    checkpoint: str = "auto",
    mesh: MeshSection | None = None,
    force: bool = False,
    console: Console | None = None,
) -> MiningResult:
    """Adds hard negatives to a table of pairs: similar texts that are no positives of the anchor.

    The positives of all equal anchors and the anchor's own text are no negatives. The results are
    equal for every number of devices, except for rounding.

    Args:
        model: run directory, checkpoint directory or name on a hub of a model that encodes texts.
        table: .jsonl, .csv, .tsv or .parquet with a pair per row.
        output: .parquet or .jsonl with the columns `anchor`, `positive`, ``negative_1``,
            ``negative_2``, … and ``scores``, a list of the scores of these texts.
        anchor: column of the anchors.
        positive: column of the texts that fit.
        corpus: file or folder of texts that may become negatives. Default: the positives of all
            rows, which are always added.
        corpus_column: column of the texts in tables of the corpus.
        negatives: negatives of a pair. Pairs with fewer are dropped.
        ranks: ``MIN:MAX``: the MAX most similar texts are candidates; without those that a limit
            excludes, the first MIN are skipped. Default: "0:N" for N negatives, or ten times as
            many with a limit, a reranker or a random sample.
        margin: a negative's score is at least this far below the lowest of the positives.
        relative_margin: the same, as a share of that score.
        min_score: lowest score of a negative.
        max_score: highest score of a negative.
        sample: "top" takes the best candidates, "random" any of them.
        seed: seed of the random sample.
        triplets: write a row for each negative, in the column ``negative``.
        reranker: a cross-encoder that scores pairs and candidates again. Limits and ``scores`` are
            then its scores.
        batch_size: rows per batch; does not change the scores.
        checkpoint: `last`, `best`, a step or `auto`, see `bert_jax.load`.
        mesh: devices to use. Default: all devices.
        force: replace `output`.
        console: console for the result.

    Raises:
        UserError: a model or a file does not fit, an option contradicts another one, `output`
            exists, or no pair has enough negatives.
    """
    target = epath.Path(output)
    if target.suffix not in _FORMATS:
        found = target.suffix or "no suffix"
        raise UserError.wrong("mine.suffix", found, one_of(_FORMATS), place=output)
    if target.exists() and not force:
        raise output_exists(target)
    require_other_file(output, [table, corpus])
    check_batch_size(batch_size)
    try:
        written = ["negative"] if triplets else [f"negative_{at + 1}" for at in range(negatives)]
        names = {f"the output's column {name}": name for name in (*written, SCORES)}
        refuse_same_column(names | {"--anchor": anchor, "--positive": positive})
    except SettingError as error:
        raise error.at(error.place) from None
    if min_score is not None and max_score is not None and min_score > max_score:
        allowed = f"at most {max_score}, the --max-score"
        raise UserError.wrong("mine.limits", min_score, allowed, place="--min-score")
    limits = (margin, relative_margin, min_score, max_score, reranker)
    several = sample == "random" or any(each is not None for each in limits)
    rule = MiningRule(
        negatives=negatives,
        ranks=_parse_ranks(ranks, negatives, several=several),
        margin=margin,
        relative_margin=relative_margin,
        min_score=min_score,
        max_score=max_score,
        sample=sample,
        seed=seed,
    )
    with hold_output(output):
        devices = open_mesh(mesh)
        with doing("reading the texts"):
            rows = _pairs(table, anchor, positive)
            texts = mining_texts(rows, () if corpus is None else _corpus(corpus, corpus_column))
        encoder = LoadedModel(*open_model(model, checkpoint=checkpoint, mesh=devices))
        if encoder.heads.vectors is None:
            raise _wrong_head(encoder, model, "a model that encodes queries and passages")
        ranker = reranker and LoadedModel(*open_model(reranker, checkpoint="auto", mesh=devices))
        if ranker and ranker.heads.cross_encoder is None:
            raise _wrong_head(ranker, str(reranker), "a cross-encoder")
        scores, found, positives = nearest(
            encoder, texts, keep=rule.pool, batch_size=batch_size, mesh=devices
        )
        if ranker:
            scores, positives = _reranked(ranker, texts, scores, found)
        every = mined(rule, texts, scores=scores, texts=found, positives=positives)
        least = 1 if triplets else negatives
        chosen = [each for each in every if len(each.texts) >= least]
        if not chosen:
            raise UserError(
                "mine.none",
                f"found no pair of {len(every):,} with {counted(least, 'negative')}. Use another "
                "--range or other limits, or a larger --corpus.",
                place=table,
            )
        with open_part(target, _FORMATS[target.suffix]) as writer:
            for start in range(0, len(chosen), _ROWS_AT_ONCE):
                part = chosen[start : start + _ROWS_AT_ONCE]
                writer.write(_table(part, texts, (anchor, positive), triplets=triplets))
    written = sum(len(each.texts) for each in chosen)
    result = MiningResult(
        Path(output),
        written if triplets else len(chosen),
        sum(len(each.texts) < negatives for each in every),
        float(np.mean([each.positive for each in chosen])),
        float(np.mean(np.concatenate([each.scores for each in chosen]))),
    )
    if console is not None:
        fewer = f", {counted(result.dropped, 'pair')} with fewer" if result.dropped else ""
        console.print(
            f"{output}: {counted(result.rows, 'row')} with {counted(written, 'negative')} from "
            f"{counted(len(texts.texts), 'text')}{fewer}, mean score of positives "
            f"{result.positive_score:.3f}, of negatives {result.negative_score:.3f}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return result


def nearest(
    encoder: LoadedModel, texts: MiningTexts, *, keep: int, batch_size: int, mesh: Mesh
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the most similar texts of each anchor that are neither its positives nor itself.

    The results are their scores and their indices, [anchors, keep], and the scores of
    `MiningTexts.pairs`. Holds the vectors of all anchors, but of one block of texts.
    """
    assert encoder.heads.vectors is not None
    comparison = comparison_of(encoder.heads.vectors)
    sizes = min(QUERIES, len(texts.anchors)), min(TEXTS, len(texts.texts))

    def blocks(
        all_texts: Sequence[str], size: int, prompt: Literal["query", "passage"]
    ) -> Iterator[tuple[Any, int]]:
        for start in range(0, len(all_texts), size):
            part = all_texts[start : start + size]
            found = encoder.encode(part, prompt=prompt, batch_size=batch_size)
            yield comparison.collect([*found]), start + len(part)

    done, known = 0, np.concatenate([texts.pairs, texts.own])
    with doing(lambda: f"comparing: {done:,} of {len(texts.texts):,} texts"):
        queries = [block for block, _ in blocks(texts.anchors, sizes[0], "query")]
        search = NearestTexts(
            queries,
            known,
            count=len(texts.anchors),
            comparison=comparison,
            mesh=mesh,
            keep=keep,
            sizes=sizes,
        )
        for block, until in blocks(texts.texts, sizes[1], "passage"):
            search.add(block, until - done)
            done = until
        scores, found, of_known = search.found()
    return scores, found, of_known[: len(texts.pairs)]


def _reranked(
    reranker: LoadedModel, texts: MiningTexts, scores: np.ndarray, found: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scores of a cross-encoder for the candidates, and for `MiningTexts.pairs`."""
    rows, places = np.nonzero(found >= 0)
    asked = np.concatenate([texts.pairs, np.stack([rows, found[rows, places]], axis=1)])
    predicted: list[float] = []
    with doing(lambda: f"reranking: {len(predicted):,} of {len(asked):,} pairs"):
        for start in range(0, len(asked), _RERANKED_AT_ONCE):
            part = asked[start : start + _RERANKED_AT_ONCE].tolist()
            records = reranker.predict([(texts.anchors[a], texts.texts[t]) for a, t in part])
            predicted += [record["prediction"] for record in records]
    positives, others = np.split(np.asarray(predicted, np.float32), [len(texts.pairs)])
    scores = np.full_like(scores, -np.inf)
    scores[rows, places] = others
    return scores, positives


def _table(
    part: Sequence[Mined], texts: MiningTexts, names: tuple[str, str], *, triplets: bool
) -> pa.Table:
    rows = part
    if triplets:
        rows = [
            each._replace(texts=each.texts[at : at + 1], scores=each.scores[at : at + 1])
            for each in part
            for at in range(len(each.texts))
        ]
    pairs = texts.pairs[[each.pair for each in rows]]
    columns = {
        names[0]: [texts.anchors[at] for at in pairs[:, 0]],
        names[1]: [texts.texts[at] for at in pairs[:, 1]],
    }
    for at in range(len(rows[0].texts)):
        name = "negative" if triplets else f"negative_{at + 1}"
        columns[name] = [texts.texts[each.texts[at]] for each in rows]
    scores = [[each.positive, *each.scores.tolist()] for each in rows]
    return pa.table({**columns, SCORES: pa.array(scores, pa.list_(pa.float32()))})


def _pairs(table: str, anchor: str, positive: str) -> list[TextTuple]:
    path = local_file(table)
    columns = TupleColumns(
        [("--anchor", anchor), ("--positive", positive)],
        score=None,
        score_range=(0, 1),
        id=None,
        score_needed=False,
    )
    rows = read_tuples(read_table(path), columns, RowErrors())
    if not rows:
        raise no_rows(path)
    return rows


def _corpus(source: str, column: str) -> Iterator[str]:
    """Yields the texts of a file or of all files in a folder."""
    files = [source]
    if not is_dataset_file(source) and epath.Path(source).is_dir():
        files = sorted(path for path in files_below(source) if Path(path).suffix in SUFFIXES)
        if not files:
            raise UserError.wrong(
                "mine.corpus", "no file of texts", f"files in {one_of(SUFFIXES)}", place="--corpus"
            )
    for path in files:
        columns = TextColumns() if Path(path).suffix == ".txt" else TextColumns(column)
        found = (each.text for each in read_texts(local_file(path), columns))
        yield from (text for text in found if text.strip())


def _parse_ranks(ranks: str | None, negatives: int, *, several: bool) -> tuple[int, int]:
    """Returns the first rank and the end of ``MIN:MAX``."""
    if ranks is None:
        return 0, negatives * (_SPARE if several else 1)
    low, colon, high = ranks.partition(":")
    if not (colon and is_whole(low) and is_whole(high)) or int(high) - int(low) < negatives:
        raise UserError(
            "mine.range",
            f'found "{ranks}", allowed: MIN:MAX with at least {counted(negatives, "rank")}, such '
            f"as 0:{_SPARE * negatives}",
            place="--range",
        )
    return int(low), int(high)


def _wrong_head(model: LoadedModel, place: str, allowed: str) -> UserError:
    return UserError.wrong("mine.model", describe(model.heads), allowed, place=place)
