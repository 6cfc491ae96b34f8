"""The task family of reranking: its settings, and how it opens its data."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pydantic

from bert_jax.data.row_errors import RowErrors
from bert_jax.data.tables import TableRow
from bert_jax.errors import SettingError, UserError, commas
from bert_jax.model.text_head import CrossEncoderSection, TextHeadSection
from bert_jax.section import Section, Strings, refuse_ignored, refuse_same_column
from bert_jax.tasks import family
from bert_jax.tasks.rerank.candidates import (
    CandidateColumns,
    Candidates,
    conflicts,
    grouped,
    read_candidates,
    read_directory,
    scaled,
    shortened,
    single,
)
from bert_jax.tasks.rerank.pairs import ListSplit, PairsSplit, RankingSplit, by_id, rankings
from bert_jax.tasks.search import retrieval
from bert_jax.tasks.search.directory import CANDIDATES, DIRECTORY, PARTS
from bert_jax.tasks.search.section import SearchSection
from bert_jax.tasks.search.tuples import TeacherColumns

if TYPE_CHECKING:
    from bert_jax.report.rendering import View
    from bert_jax.tasks.rerank.task import RerankTask

OUTPUT: Final = "LABEL_0"  # name of the only output, as in cross-encoders of sentence-transformers
FIGURES: Final = (*(f"{name}@{retrieval.CUTOFF}" for name in ("ndcg", "mrr", "recall")), "map")
LISTS: Final = (
    "list_net",
    "lambda",
    "margin_mse",
    "kl",
)  # losses that compare the candidates of a query
TEACHER: Final = ("mse", "margin_mse", "kl")  # losses that learn scores of a teacher


class RerankLossSection(Section):
    """The loss of a cross-encoder."""

    kind: Literal["bce", "list_net", "lambda", "mse", "margin_mse", "kl"] = "bce"
    """`bce`: binary cross-entropy of each pair. `list_net`: cross-entropy between the softmax of a
    query's labels and the softmax of its scores (ListNet). `lambda`: logistic loss of each two
    candidates of a query, weighted by their effect on nDCG (LambdaLoss, NDCG-Loss2++). `mse`,
    `margin_mse` and `kl` learn a teacher's scores. `mse`: squared difference of both scores.
    `margin_mse`: squared difference of margins; a margin is the score of a query's first candidate
    minus the score of another one (arXiv 2010.02666). `kl`: Kullback-Leibler divergence of the
    softmax of a query's scores (arXiv 2010.11386)."""
    positive_weight: float = pydantic.Field(default=1.0, gt=0)
    """`bce` only: weight of the part of the loss that raises scores. With few relevant documents,
    a usual value is the number of others per relevant one."""
    temperature: float = pydantic.Field(default=1.0, gt=0)
    """`kl` only: divisor of the scores before the softmax."""
    teacher_temperature: float = pydantic.Field(default=1.0, gt=0)
    """`kl` only: divisor of the teacher's scores. Scores that differ by 10 or more need a larger
    value, otherwise only the best candidate counts."""

    @pydantic.model_validator(mode="after")
    def _only_used(self) -> Self:
        if self.kind != "bce":
            refuse_ignored(self, "positive_weight", allowed="bce")
        if self.kind != "kl":
            refuse_ignored(self, "temperature", "teacher_temperature", allowed="kl")
        return self


class RerankSection(SearchSection):
    """A cross-encoder, which scores pairs of a query and a candidate document.

    ``{kind: rerank, train: candidates.jsonl, query: question, document: answer, label: fits}``

    `dev` and `test` are tables like `train`, or directories in the layout of BEIR that also have
    the files ``candidates/dev.tsv`` and ``candidates/test.tsv``, or sets in the layout of NanoBEIR:
    ``hf://datasets/sentence-transformers/NanoBEIR-en/NanoMSMARCO``.
    """

    text_column = "query"
    learns_labels = False
    parts = (*PARTS, CANDIDATES)

    kind: Literal["rerank"] = "rerank"
    query: str
    """Column of the queries."""
    document: str
    """Column of the candidate documents: a text, or a list of texts in JSON lines and Parquet."""
    negatives: Strings = ()
    """Columns of texts that do not answer the query. With them, `document` answers it."""
    label: str | None = None
    """Column of the labels: a number per document, above 0 for a relevant one. A list of documents
    needs a list of labels. Not needed with `negatives`."""
    teacher_score: Strings = ()
    """Column of a teacher's scores in `train`, a number per document, for the losses `mse`,
    `margin_mse` and `kl`. Or a column for `document` and for each of `negatives`. With negatives
    and `margin_mse`, the numbers can also be the teacher's margins, one for each negative. With
    scores, only `dev` needs labels."""
    label_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest label in `train`, for the loss `bce`."""
    candidates_per_query: int = pydantic.Field(default=32, ge=2)
    """Maximum number of candidates of a query in `train`, for losses that compare them. Of longer
    lists, the first candidate is kept, then relevant ones, then a sample of the others."""
    query_prefix: str | None = None
    """Text before every query. By default, the checkpoint's, or none."""
    loss: RerankLossSection = RerankLossSection()
    """The loss."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        negatives = {f"negatives.{at}": name for at, name in enumerate(self.negatives)}
        columns = {name: getattr(self, name) for name in ("query", "document", "label")}
        scores = {f"teacher_score.{at}": name for at, name in enumerate(self.teacher_score)}
        refuse_same_column(columns | negatives | scores)
        teacher = self.loss.kind in TEACHER
        given = (self.label is not None) + bool(self.negatives)
        needed = 0 if teacher and self.dev is not None else 1
        if not needed <= given <= 1:
            found = f"found {self.label} with negatives" if given else "missing"
            raise SettingError(
                "rerank.label_needed", f"{found}, allowed: label or negatives", place="label"
            )
        if teacher and not self.teacher_score:
            raise SettingError(
                "rerank.no_teacher", f"loss {self.loss.kind} needs it", place="teacher_score"
            )
        if not teacher:
            refuse_ignored(self, "teacher_score", allowed=f"the losses {commas(TEACHER)}")
        if self.loss.kind not in LISTS:
            refuse_ignored(self, "candidates_per_query", allowed=f"the losses {commas(LISTS)}")
        low, high = self.label_range
        if low >= high:
            raise SettingError.wrong(
                "rerank.label_range", self.label_range, "increasing numbers", place="label_range"
            )
        if self.loss.kind != "bce":
            refuse_ignored(self, "label_range", allowed="the loss bce")
        return self

    def train_task(self, *, accumulation: int, steps: int, **parts: Any) -> "RerankTask":
        """Returns the task in the train loop."""
        from bert_jax.tasks.rerank.task import RerankTask

        del accumulation, steps
        return RerankTask(training=self.loss, **parts)

    def required(self, role: str) -> family.Columns:
        """Returns the columns of texts and ids, and of labels and scores if the role needs them."""
        negatives = self.negatives if role != "input" else ()
        return [
            ("task.query", self.query),
            ("task.document", self.document),
            *(("task.negatives", name) for name in negatives),
            ("task.id", self.id),
            *([("task.label", self.label)] if self._labelled(role) else []),
            *(("task.teacher_score", each) for each in self.teacher_score if role == "train"),
        ]

    @property
    def _teacher(self) -> TeacherColumns:
        margins = self.loss.kind == "margin_mse" and bool(self.negatives)
        return TeacherColumns("task.teacher_score", self.teacher_score, margins=margins)

    def _labelled(self, role: str) -> bool:
        """Returns whether every row of a role needs labels. A held-out dev set is like `train`."""
        without = role == "train" and self.loss.kind in TEACHER and self.dev is not None
        return family.needs_labels(role) and not without

    def head(self, found: TextHeadSection | None, *, max_length: int) -> CrossEncoderSection:
        """Returns how the trained model scores pairs. `found` is the checkpoint's text head."""
        known = found if isinstance(found, CrossEncoderSection) else CrossEncoderSection()
        prefix = known.query_prefix if self.query_prefix is None else self.query_prefix
        return known.model_copy(update={"query_prefix": prefix, "max_length": max_length})

    def open(self, request: family.DataRequest) -> family.Family:
        """Opens the tables and directories.

        If there is no dev set, holds out some queries of the training set. Raises UserError for a
        missing file or column, a malformed row, a training set that the loss cannot use, or a dev
        set on which all models have the same score.
        """
        head = self.head(request.text_head, max_length=request.max_length)
        notes: list[str] = []
        tables, directories = self.read_data(request, notes, read_directory)
        lists = tables | directories
        parts = {"head": head, "tokenizer": request.tokenizer, "max_length": request.max_length}
        splits: dict[str, PairsSplit] = {}
        for role in request.roles:
            if role == "train":
                rows = self._training_rows(lists[role], request, notes)
                splits[role] = ListSplit(rows, **parts)
            else:
                rows = lists[role] if role == "input" else joined(lists[role], role, notes)
                splits[role] = RankingSplit(rows, **parts)
            notes += family.count_notes(role, splits[role].findings)
        chosen_by = splits.get("dev") if "train" in request.roles else None
        if isinstance(chosen_by, RankingSplit) and chosen_by.undecided:
            raise UserError(
                "rerank.dev_undecided",
                "found equal labels within each query. Add candidates, or use the task table.",
                place="task.dev",
            )
        return family.Family(
            heads=family.task_heads(
                "sequence_classification", labels=(OUTPUT,), cross_encoder=head
            ),
            best_metric=FIGURES[0],
            splits=dict(splits),
            notes=tuple(notes),
            score=_score,
            scored=("label", "prediction", "ranks", "text", "pair"),
            write_official=family.no_benchmark("rerank"),
            view=_view,
            constant=by_id,
        )

    def parse(self, table: Iterable[TableRow], role: str, errors: RowErrors) -> list[Candidates]:
        """Returns the candidates of a table. Raises UserError if a dev set has no labels."""
        if role == "dev" and self.label is None and not self.negatives:
            raise UserError(
                "rerank.no_dev_labels",
                f"missing, but dev is a table. Set it to a column, or dev to {DIRECTORY}.",
                place="task.label",
            )
        columns = CandidateColumns(
            query=self.query,
            document=self.document,
            negatives=() if role == "input" else self.negatives,
            label=self.label,
            teacher=self._teacher if role == "train" and self.teacher_score else None,
            id=self.id,
            labelled=self._labelled(role),
            required=self.required(role),
        )
        return read_candidates(table, columns, errors)

    def query_of(self, row: Candidates) -> str:
        """Returns the query."""
        return row.query

    def _training_rows(
        self, rows: Sequence[Candidates], request: family.DataRequest, notes: list[str]
    ) -> Sequence[Candidates]:
        """Returns lists for a loss over lists, and single pairs otherwise.

        Their labels are from 0 to 1 for `bce`, and the teacher's scores for losses of a teacher.
        """
        if self.loss.kind in LISTS:
            if not self._teacher.margins:  # relative to the first document of their row
                rows = joined(rows, "train", notes)
            most = self.candidates_per_query
            longer = sum(len(each.documents) > most for each in rows)
            what = f"of {len(rows):,} queries have more than {most} candidates, which are sampled"
            notes += family.count_notes("train", {f"{what} (task.candidates_per_query)": longer})
            rows = [shortened(each, most, seed=request.seed) for each in rows]
        if self.loss.kind in TEACHER:
            rows = [each._replace(grades=each.scores) for each in rows]
        if self.loss.kind not in LISTS:
            if self.loss.kind == "bce":
                rows = [scaled(row, self.label_range, place=str(self.train)) for row in rows]
            return single(rows)
        of_each = (each.labels if self.loss.kind == "lambda" else each.documents for each in rows)
        if all(len({*each}) < 2 for each in of_each):
            raise UserError(
                "rerank.no_lists",
                f"found {self.loss.kind}, but no query has candidates to compare. Use bce or mse.",
                place="task.loss.kind",
            )
        return rows


def joined(rows: Sequence[Candidates], role: str, notes: list[str]) -> list[Candidates]:
    """Joins the rows of equal queries. Adds a note if they contradict each other."""
    found = grouped(rows)
    what = "documents have another label in a later row of the same query, which counts"
    notes += family.count_notes(role, {what: conflicts(rows, found)})
    return found


def _score(records: Sequence[family.Record]) -> dict[str, float]:
    """Returns the scores of labelled records, {} if there are none."""
    labelled = [record for record in records if record["label"] is not None]
    return retrieval.retrieval_figures(rankings(labelled), FIGURES) if labelled else {}


def _view(
    split: family.Split,
    records: Sequence[family.Record],
    predict: Callable[[family.Split], list[family.Record]],
) -> "View":
    """Returns the rankings of some queries, see `Family.view`."""
    from bert_jax.report.finetuning.rankings import rankings_view

    del predict
    assert isinstance(split, RankingSplit)
    return rankings_view(records, [each.documents for each in split.lists])
