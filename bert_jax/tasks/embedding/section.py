"""The task family of sentence embeddings: its settings, and how it opens its data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pydantic

from bert_jax.data.memory_table import MemoryTable
from bert_jax.errors import SettingError, UserError, commas
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import Pool, PoolingSection, TextHeadSection
from bert_jax.section import Section, Strings, refuse_ignored, refuse_same_column
from bert_jax.tasks.embedding import retrieval
from bert_jax.tasks.embedding.tuples import (
    SCORES,
    TextsSplit,
    TextTuple,
    TupleColumns,
    TupleSplit,
    read_tuples,
)
from bert_jax.tasks.family import (
    Columns,
    DataRequest,
    Family,
    Record,
    Split,
    count_notes,
    needs_labels,
    no_benchmark,
    no_rows,
)
from bert_jax.tasks.scores import figures
from bert_jax.tasks.search import SearchSection

if TYPE_CHECKING:
    from bert_jax.tasks.embedding.task import EmbeddingTask

SCORED: Final = ("cosent", "cosine")  # losses that compare cosines with scores
SPEARMAN: Final = ("spearman", "pearson")


class EmbeddingLossSection(Section):
    """The loss. Its negatives are all other texts of the global batch."""

    kind: Literal["info_nce", "cosent", "cosine", "simcse"] = "info_nce"
    """`info_nce`: for pairs and triplets; each anchor chooses its positive among all positives and
    negatives of the batch. `simcse`: `info_nce` for single texts, encoded twice with different
    dropout (arXiv 2104.08821). `cosent`: for scored pairs; a higher score needs a higher cosine.
    `cosine`: for scored pairs; squared difference of cosine and score."""
    temperature: float = pydantic.Field(default=0.05, gt=0)
    """Divisor of the similarities. Not used by `cosine`."""
    learn_temperature: bool = False
    """Whether the temperature is trained, starting from `temperature`. For `info_nce` and
    `simcse`."""
    symmetric: bool = False
    """Whether positives also choose their anchors. For `info_nce` and `simcse`."""
    matryoshka: tuple[pydantic.PositiveInt, ...] = ()
    """Widths at which vectors are cut off, such as [384, 128, 32]. The loss is the sum over these
    widths (arXiv 2205.13147). By default, the loss of whole vectors."""

    @pydantic.model_validator(mode="after")
    def _only_used(self) -> Self:
        if self.kind in SCORED:
            refuse_ignored(self, "learn_temperature", "symmetric", allowed="info_nce, simcse")
        return self


class EmbeddingSection(SearchSection):
    """Sentence embeddings from pairs, triplets, scored pairs or single texts.

    ``{kind: embedding, train: pairs.csv, anchor: question, positive: answer}``

    `dev` and `test` are tables like `train`, or directories in the layout of BEIR.
    """

    text_column = "anchor"
    compares_rows = True
    learns_labels = False

    kind: Literal["embedding"] = "embedding"
    anchor: str
    """Column of the texts, or of the first texts of pairs: questions, for example."""
    positive: str | None = None
    """Column of the texts that fit the anchors: answers, for example."""
    negatives: Strings = ()
    """Columns of texts that do not fit the anchors although they look similar."""
    score: str | None = None
    """Column of the similarities of anchors and positives. If set, dev and test tables are scored
    by the rank correlation with this column. Otherwise they are scored as a retrieval. With
    `info_nce`, `train` must not have the column."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score."""
    dev_fraction: float = pydantic.Field(default=0.1, gt=0, lt=1)
    """Fraction of `train` to hold out if `dev` is not set."""
    query_prefix: str | None = None
    """Text before every anchor and every query, such as "query: ". By default, the checkpoint's, or
    none."""
    passage_prefix: str | None = None
    """Text before every positive, negative and passage, such as "passage: ". By default, the
    checkpoint's, or none."""
    pool: Pool | None = None
    """How the states of a text become one vector: `mean` of all tokens, first token (`cls`) or
    `last` token. By default, as in the checkpoint, or `mean`."""
    normalize: bool | None = None
    """Whether vectors have length 1, so that similarities are cosines. Otherwise `info_nce` and
    retrieval use dot products. By default, vectors and similarities are as in the checkpoint, or
    true."""
    projection: int | None = pydantic.Field(default=None, ge=1)
    """Width of a linear layer after pooling. By default, as in the checkpoint, or no layer."""
    loss: EmbeddingLossSection = EmbeddingLossSection()
    """The loss."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.score_range
        if low >= high:
            raise SettingError(
                "embedding.score_range",
                f"found {commas(self.score_range)}, allowed: two increasing numbers",
                place="score_range",
            )
        negatives = {f"negatives.{at}": name for at, name in enumerate(self.negatives)}
        columns = {name: getattr(self, name) for name in ("anchor", "positive", "score")}
        refuse_same_column(columns | negatives)
        needed = {"simcse": (), "info_nce": ("positive",)}.get(
            self.loss.kind, ("positive", "score")
        )
        for name in needed:
            if getattr(self, name) is None:
                raise SettingError(
                    "embedding.column",
                    f"missing, but the loss {self.loss.kind} needs it. Set it to a column.",
                    place=name,
                )
        return self

    def train_task(self, *, accumulation: int, **parts: Any) -> "EmbeddingTask":
        """Returns the task in the train loop, which encodes a batch in `accumulation` chunks."""
        from bert_jax.tasks.embedding.task import EmbeddingTask

        return EmbeddingTask(training=self.loss, chunks=accumulation, **parts)

    def required(self, role: str) -> Columns:
        """Returns the columns of texts and ids, and of scores if the role needs them."""
        return self.columns(role).required

    def tuple_columns(self, role: str) -> list[str]:
        """Returns the columns of texts, and of scores except for predictions."""
        if role == "input":
            return super().tuple_columns(role)
        names = (self.anchor, self.positive, *self.negatives, self.score)
        return [name for name in names if name is not None]

    def scored(self, role: str) -> bool:
        """Returns whether the rows of a role have scores. A held-out dev set is like `train`."""
        like_train = role == "train" or (role == "dev" and self.dev is None)
        return self.loss.kind in SCORED if like_train else self.score is not None

    def columns(self, role: str) -> TupleColumns:
        """Returns the columns to read for a role.

        Raises UserError if the role needs pairs, but `positive` is not set.
        """
        texts, scored = [("task.anchor", self.anchor)], self.scored(role)
        if self.loss.kind != "simcse" or role != "train":
            texts.append(("task.positive", self._positive(role)))
        if self.loss.kind == "info_nce" and not scored and role != "input":
            texts += [("task.negatives", name) for name in self.negatives]
        score, needed = self.score if scored else None, scored and needs_labels(role)
        ignored: tuple[str, ...] = ()
        if self.loss.kind == "info_nce" and role == "train":
            ignored = SCORES if self.score is None else (self.score,)
        return TupleColumns(texts, score, self.score_range, self.id, needed, ignored)

    def _positive(self, role: str) -> str:
        if self.positive is None:
            raise UserError(
                "embedding.no_pairs",
                f"missing, but {role} is a table of pairs. Set it to a column, or set {role} to a "
                "directory with queries.jsonl, corpus.jsonl and qrels.",
                place="task.positive",
            )
        return self.positive

    def embedding(self, found: TextHeadSection | None) -> PoolingSection:
        """Returns how the trained model computes vectors. `found`: how the checkpoint does."""
        names = ("pool", "normalize", "projection", "query_prefix", "passage_prefix")
        asked = {name: value for name in names if (value := getattr(self, name)) is not None}
        asked["temperature"] = self.loss.temperature if self.loss.learn_temperature else None
        if self.normalize is not None:
            asked["similarity"] = None
        known = found if isinstance(found, PoolingSection) else PoolingSection()
        return known.model_copy(update=asked)

    def open(self, request: DataRequest) -> Family:
        """Opens the tables and directories.

        If there is no dev set, `hold_out` takes one from the training set, without separating equal
        anchors. Raises UserError for a missing file or column, a malformed row, a training set that
        is too small for `hold_out`, or a dev set on which all models have the same score.
        """
        # Import here: charts are for reports, and reading a configuration imports this module.
        from bert_jax.tasks.embedding.sample import view_of_sample

        embedding = self.embedding(request.text_head)
        tables: dict[str, Sequence[TextTuple]] = {}
        splits: dict[str, Split] = {}
        notes: list[str] = []
        for role in ("train", "dev", "test", "input"):
            if role not in request.roles or (role == "dev" and self.dev is None):
                if role == "test" and "train" in request.roles and self.directory(role) is not None:
                    # Find mistakes before the training.
                    notes += retrieval.read_retrieval(str(self.test), role)[1]
                continue
            if (directory := self.directory(role)) is not None:
                data, found = retrieval.read_retrieval(directory, role)
                notes += found
                splits[role] = _retrieval_split(data, request, embedding)
            else:
                tables[role] = self._read(request.source(self, role), role, notes)
        if "dev" in request.roles and self.dev is None:
            train, dev = self._held_out(request, tables.get("train"), notes)
            tables |= {"train": train, "dev": dev}
        for role in request.roles:
            if role in tables:
                splits[role] = self._split(role, tables[role], request, embedding)
        chosen_by = splits.get("dev") if "train" in request.roles else None
        if isinstance(chosen_by, TextsSplit) and (reason := chosen_by.undecided) is not None:
            raise UserError(
                "embedding.dev_undecided",
                f"found {reason}, so every model has the same score. Use a larger file, or "
                f"without dev a larger dev_fraction (now {self.dev_fraction}).",
                place="task.dev",
            )
        for role, split in splits.items():
            notes += count_notes(role, split.findings)
        held = next((split for role, split in splits.items() if role != "train"), None)
        ranked = isinstance(held, retrieval.RetrievalSplit)
        return Family(
            heads=HeadsSection(pooler=False, mlm=False, next_sentence=False, embedding=embedding),
            best_metric=retrieval.FIGURES[0] if ranked else SPEARMAN[0],
            splits={role: splits[role] for role in request.roles},
            notes=tuple(notes),
            score=_score,
            scored=("label", "prediction", "ranks"),
            write_official=no_benchmark("embedding"),
            view=view_of_sample,
            constant=retrieval.one_order if ranked else None,
        )

    def _read(self, source: Path | MemoryTable, role: str, notes: list[str]) -> list[TextTuple]:
        table, errors = self.rows(source, role)
        rows = read_tuples(table, self.columns(role), errors)
        if not rows:
            raise no_rows(source, errors)
        notes += errors.note(source, kept=len(rows))
        return rows

    def _held_out(
        self, request: DataRequest, rows: Sequence[TextTuple] | None, notes: list[str]
    ) -> tuple[list[TextTuple], list[TextTuple]]:
        """Splits the training rows, which are read if they are None."""
        if self.loss.kind == "simcse":
            raise UserError(
                "embedding.no_dev",
                "missing, but single texts have no scores. Set it to a table of pairs, or to a "
                "directory with queries.jsonl, corpus.jsonl and qrels.",
                place="task.dev",
            )
        if rows is None:
            rows = self._read(request.source(self, "train"), "train", notes)
        queries = (row.texts[0] for row in rows)
        return self.split_off_dev(
            rows, queries, request, notes, kind=self.kind, fraction=self.dev_fraction
        )

    def _split(
        self,
        role: str,
        rows: Sequence[TextTuple],
        request: DataRequest,
        embedding: PoolingSection,
    ) -> Split:
        """Returns the split of a table: tuples, or for dev and test without scores a retrieval."""
        if role in ("dev", "test") and not self.scored(role):
            return _retrieval_split(retrieval.retrieval_of(rows), request, embedding)
        prefixes = [embedding.query_prefix]
        if self.loss.kind == "simcse" and role == "train":
            rows = [row._replace(texts=row.texts * 2) for row in rows]
            prefixes *= 2
        prefixes += [embedding.passage_prefix] * (len(rows[0].texts) - len(prefixes))
        return TupleSplit(
            rows,
            prefixes=prefixes,
            tokenizer=request.tokenizer,
            max_length=request.max_length,
            dimensions=embedding.dimensions,
        )


def _retrieval_split(
    data: retrieval.Retrieval, request: DataRequest, embedding: PoolingSection
) -> retrieval.RetrievalSplit:
    return retrieval.RetrievalSplit(
        data,
        embedding=embedding,
        tokenizer=request.tokenizer,
        max_length=request.max_length,
    )


def _score(records: Sequence[Record]) -> dict[str, float]:
    """Returns the scores of labelled records, {} if there are none."""
    labelled = [record for record in records if record["label"] is not None]
    if not labelled:
        return {}
    if "ranks" in labelled[0]:
        return retrieval.retrieval_figures(labelled)
    return figures(labelled, SPEARMAN)
