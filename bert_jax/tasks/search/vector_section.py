"""Settings and data of the task families that encode queries and passages by themselves."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, Self

import pydantic

from bert_jax.data.row_errors import RowErrors
from bert_jax.data.tables import TableRow
from bert_jax.errors import SettingError, UserError, commas
from bert_jax.inference.comparison import comparison_of
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import TextHeadSection, VectorHeadSection
from bert_jax.section import Section, Strings, refuse_ignored, refuse_same_column
from bert_jax.tasks import family
from bert_jax.tasks.scores import figures
from bert_jax.tasks.search import retrieval, tuples
from bert_jax.tasks.search.directory import DIRECTORY, read_retrieval
from bert_jax.tasks.search.section import SearchSection
from bert_jax.text.tokenizer import Tokenizer

SPEARMAN: Final = ("spearman", "pearson")
TAUGHT: Final = ("margin_mse", "kl")  # losses that learn a teacher's scores


class VectorLossSection(Section):
    """The loss. Its negatives are all other texts of the global batch."""

    kind: Any = "info_nce"
    """`info_nce`: for pairs and triplets; each anchor chooses its positive among all positives and
    negatives of the batch. `margin_mse`: squared difference of margins and a teacher's margins; a
    margin is the similarity of the positive minus that of a negative (arXiv 2010.02666). `kl`:
    divergence of the softmax of similarities from that of a teacher's scores (arXiv 2010.11386)."""
    temperature: float = pydantic.Field(default=1.0, gt=0)
    """Divisor of the similarities. Not used by `margin_mse`."""
    teacher_temperature: float = pydantic.Field(default=1.0, gt=0)
    """`kl` only: divisor of the teacher's scores. If they differ by 10 or more, only the best
    passage counts without a larger value. Scores from 0 to 1 need a smaller one, such as 0.1."""

    @pydantic.model_validator(mode="after")
    def _temperature_used(self) -> Self:
        if self.kind != "kl":
            refuse_ignored(self, "teacher_temperature", allowed="kl")
        if self.kind in ("cosine", "margin_mse", "mse"):
            refuse_ignored(self, "temperature", allowed="other losses")
        return self

    @property
    def needed(self) -> Sequence[str]:
        """The settings of columns that the loss needs besides `anchor`."""
        return ("positive", "negatives", "teacher_score") if self.taught else ("positive",)

    @property
    def taught(self) -> bool:
        """Whether the loss learns a teacher's scores of an anchor's passages."""
        return self.kind in TAUGHT

    @property
    def scored(self) -> bool:
        """Whether the loss compares similarities with scores of pairs."""
        return False

    @property
    def single(self) -> bool:
        """Whether the loss learns from the anchors alone."""
        return False

    @property
    def twice(self) -> bool:
        """Whether each anchor is encoded twice."""
        return False

    @property
    def contrasts(self) -> bool:
        """Whether the loss compares an anchor's positive with other texts."""
        return not self.scored and not self.single


class VectorSearchSection(SearchSection):
    """Settings of a task family whose model encodes queries and passages by themselves."""

    text_column = "anchor"
    compares_rows = True
    learns_labels = False
    head_type: ClassVar[type[VectorHeadSection]]
    """The settings of the trained model's head."""

    anchor: str
    """Column of the texts, or of the first texts of pairs: questions, for example."""
    positive: str | None = None
    """Column of the texts that fit the anchors: answers, for example."""
    negatives: Strings = ()
    """Columns of texts that do not fit the anchors although they look similar."""
    teacher_score: Strings = ()
    """Column of a teacher's scores in `train`, for the losses `margin_mse` and `kl`: lists of a
    number for the positive and for each negative. Or a column for each of these texts. For
    `margin_mse`, the numbers can also be the teacher's margins, one for each negative."""
    score: str | None = None
    """Column of the similarities of anchors and positives. If set, dev and test tables are scored
    by the rank correlation with this column. Otherwise they are scored as a retrieval. With
    `info_nce`, `train` must not have the column."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score."""
    query_prefix: str | None = None
    """Text before every anchor and every query, such as "query: ". By default, the checkpoint's, or
    none."""
    passage_prefix: str | None = None
    """Text before every positive, negative and passage, such as "passage: ". By default, the
    checkpoint's, or none."""
    loss: Any
    """The loss, a `VectorLossSection`."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.score_range
        if low >= high:
            raise SettingError.wrong(
                "embedding.score_range", (low, high), "increasing numbers", place="score_range"
            )
        negatives = {f"negatives.{at}": name for at, name in enumerate(self.negatives)}
        columns = {name: getattr(self, name) for name in ("anchor", "positive", "score")}
        teacher = {f"teacher_score.{at}": name for at, name in enumerate(self.teacher_score)}
        refuse_same_column(columns | negatives | teacher)
        if not self.loss.taught:
            refuse_ignored(self, "teacher_score", allowed=f"the losses {commas(TAUGHT)}")
        for name in self.loss.needed:
            if not getattr(self, name):
                raise SettingError(
                    "embedding.column", f"missing, but loss {self.loss.kind} needs it", place=name
                )
        return self

    def head(self, found: TextHeadSection | None, tokenizer: Tokenizer) -> VectorHeadSection:
        """Returns how the trained model encodes texts. `found`: how the checkpoint does."""
        known = found if isinstance(found, self.head_type) else self.head_type()
        return known.model_copy(update=self.head_changes(tokenizer))

    def head_changes(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns what the settings change in the head: the set ones that both have."""
        del tokenizer
        names = type(self).model_fields.keys() & self.head_type.model_fields.keys()
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def heads(self, head: Any) -> HeadsSection:
        """Returns the heads of the trained model. `head` is the result of `head`."""
        raise NotImplementedError

    @property
    def view(self) -> "family.ViewOfSplit | None":
        """What the report shows of the dev set, see `Family.view`."""
        return None

    def required(self, role: str) -> family.Columns:
        """Returns the columns of texts and ids, and of scores if the role needs them."""
        return self.columns(role).required

    def tuple_columns(self, role: str) -> list[str]:
        """Returns the columns of texts, and of scores except for predictions."""
        if role == "input":
            return super().tuple_columns(role)
        teacher = self.teacher_columns if role == "train" else None
        learnt = teacher.names if teacher is not None else ()
        names = (self.anchor, self.positive, *self.negatives, self.score, *learnt)
        return [name for name in names if name is not None]

    @property
    def teacher_columns(self) -> tuples.TeacherColumns | None:
        """The columns in `train` of what a teacher found. None if the loss has no teacher."""
        if not self.loss.taught:
            return None
        passages, margins = 1 + len(self.negatives), self.loss.kind == "margin_mse"
        return tuples.TeacherColumns("task.teacher_score", self.teacher_score, passages, margins)

    def scored(self, role: str) -> bool:
        """Returns whether the rows of a role have scores. A held-out dev set is like `train`."""
        like_train = role == "train" or (role == "dev" and self.dev is None)
        return self.loss.scored if like_train else self.score is not None

    def columns(self, role: str) -> tuples.TupleColumns:
        """Returns the columns to read for a role.

        Raises UserError if the role needs pairs, but `positive` is not set.
        """
        texts, scored = [("task.anchor", self.anchor)], self.scored(role)
        if not self.loss.single or role != "train":
            texts.append(("task.positive", self._positive(role)))
        if self.loss.contrasts and not scored and role != "input":
            texts += [("task.negatives", name) for name in self.negatives]
        score, needed = self.score if scored else None, scored and family.needs_labels(role)
        ignored: tuple[str, ...] = ()
        if self.loss.contrasts and not self.loss.taught and role == "train":
            ignored = tuples.SCORES if self.score is None else (self.score,)
        teacher = self.teacher_columns if role == "train" else None
        return tuples.TupleColumns(
            texts, score, self.score_range, self.id, needed, ignored, teacher
        )

    def _positive(self, role: str) -> str:
        if self.positive is None:
            raise UserError(
                "embedding.no_pairs",
                f"missing, but {role} is a table. Set it to a column, or {role} to {DIRECTORY}.",
                place="task.positive",
            )
        return self.positive

    def open(self, request: family.DataRequest) -> family.Family:
        """Opens the tables and directories.

        If there is no dev set, `hold_out` takes one from the training set, without separating equal
        anchors. Raises UserError for a missing file or column, a malformed row, a training set that
        is too small for `hold_out`, or a dev set on which all models have the same score.
        """
        head = self.head(request.text_head, request.tokenizer)
        self.check_lengths(request.max_length)
        if self.loss.single and self.dev is None and "dev" in request.roles:
            raise UserError(
                "embedding.no_dev",
                f"missing, but single texts have no scores. Set it to pairs or {DIRECTORY}.",
                place="task.dev",
            )
        notes: list[str] = []
        tables, directories = self.read_data(request, notes, read_retrieval)
        splits = {
            role: _retrieval_split(directories[role], request, head)
            if role in directories
            else self._split(role, tables[role], request, head)
            for role in request.roles
        }
        chosen_by = splits.get("dev") if "train" in request.roles else None
        if isinstance(chosen_by, tuples.TextsSplit) and (reason := chosen_by.undecided) is not None:
            raise UserError(
                "embedding.dev_undecided",
                f"found {reason}. Use a larger file or dev_fraction (now {self.dev_fraction}).",
                place="task.dev",
            )
        for role, split in splits.items():
            notes += family.count_notes(role, split.findings)
        held = next((split for role, split in splits.items() if role != "train"), None)
        ranked = isinstance(held, retrieval.RetrievalSplit)
        return family.Family(
            heads=self.heads(head),
            best_metric=retrieval.FIGURES[0] if ranked else SPEARMAN[0],
            splits=splits,
            notes=tuple(notes),
            score=_score,
            scored=("label", "prediction", "ranks"),
            write_official=family.no_benchmark(self.kind),
            view=self.view,
            constant=retrieval.one_order if ranked else None,
        )

    def check_lengths(self, max_length: int) -> None:
        """Raises UserError if a setting is larger than `max_length`, the limit of all texts."""

    def parse(
        self, table: Iterable[TableRow], role: str, errors: RowErrors
    ) -> list[tuples.TextTuple]:
        """Returns the tuples of a table."""
        return tuples.read_tuples(table, self.columns(role), errors)

    def query_of(self, row: tuples.TextTuple) -> str:
        """Returns the anchor."""
        return row.texts[0]

    def _split(
        self,
        role: str,
        rows: Sequence[tuples.TextTuple],
        request: family.DataRequest,
        head: VectorHeadSection,
    ) -> family.Split:
        """Returns the split of a table: tuples, or for dev and test without scores a retrieval."""
        if role in ("dev", "test") and not self.scored(role):
            return _retrieval_split(retrieval.retrieval_of(rows), request, head)
        prefixes = [head.query_prefix]
        if self.loss.twice and role == "train":
            rows = [row._replace(texts=row.texts * 2) for row in rows]
            prefixes *= 2
        prefixes += [head.passage_prefix] * (len(rows[0].texts) - len(prefixes))
        return tuples.TupleSplit(
            rows,
            prefixes=prefixes,
            tokenizer=request.tokenizer,
            max_length=request.max_length,
            comparison=comparison_of(head),
        )


def _retrieval_split(
    data: retrieval.Retrieval, request: family.DataRequest, head: VectorHeadSection
) -> retrieval.RetrievalSplit:
    return retrieval.RetrievalSplit(
        data, head=head, tokenizer=request.tokenizer, max_length=request.max_length
    )


def _score(records: Sequence[family.Record]) -> dict[str, float]:
    """Returns the scores of labelled records, {} if there are none."""
    labelled = [record for record in records if record["label"] is not None]
    if not labelled:
        return {}
    if "ranks" in labelled[0]:
        return retrieval.retrieval_figures(labelled)
    return figures(labelled, SPEARMAN)
