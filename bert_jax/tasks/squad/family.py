"""Question answering on SQuAD 1.1 and 2.0: the task family."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pydantic
from etils import epath

from bert_jax.data.memory_table import MemoryTable
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.model.config import HeadsSection
from bert_jax.section import DataPathText, Section
from bert_jax.tasks.family import DataRequest, Family, Record, Split, count_notes, needs_labels
from bert_jax.tasks.squad.file import SquadQuestion, Version, questions_in_memory, read_squad
from bert_jax.tasks.squad.scores import figures_1_1, figures_2_0
from bert_jax.tasks.squad.split import SPECIAL_PIECES, SquadOptions, SquadSplit

TUNED_THRESHOLD = "null_threshold"  # among the figures of a run's dev evaluation


class SquadSection(Section):
    """SQuAD 1.1 or 2.0, from JSON files in its form. The defaults are google-research/bert's."""

    kind: Literal["squad"] = "squad"
    """This family."""
    train: DataPathText | None = None
    """A JSON file."""
    dev: DataPathText | None = None
    """A JSON file, which picks the best checkpoint."""
    test: DataPathText | None = None
    """A JSON file, with answers or without."""
    version: Literal["auto", "1.1", "2.0"] = "auto"
    """`auto`: 2.0 if one of the files is."""
    stride: int = pydantic.Field(default=128, ge=1)
    """Pieces from one window of a long context to the next."""
    max_query_length: int = pydantic.Field(default=64, ge=1)
    """Pieces of a question; more are cut."""
    n_best: int = pydantic.Field(default=20, ge=1)
    """Answers to keep for each question."""
    max_answer_length: int = pydantic.Field(default=30, ge=1)
    """Pieces."""
    null_threshold: float | None = pydantic.Field(default=None, allow_inf_nan=False)
    """No answer is given where its score is above the best answer's by more. None: chosen on
    dev."""

    @property
    def tunes_threshold(self) -> bool:
        """Whether predictions need a threshold that is tuned on the dev file."""
        return self.dev is not None and self.version != "1.1" and self.null_threshold is None

    def open(self, request: DataRequest) -> Family:
        """Reads the files of the roles asked for.

        Raises UserError: a role without a file, a malformed file, or rows that hold no context.
        """
        least = self.max_query_length + SPECIAL_PIECES + 1
        if request.max_length < least:
            raise UserError(
                f"max_length: found {request.max_length}, allowed: at least {least} where "
                f"task.max_query_length is {self.max_query_length}"
            )
        paths = {role: request.source(self, role) for role in request.roles}
        files = {
            role: questions_in_memory(path, version=self.version)
            if isinstance(path, MemoryTable)
            else read_squad(path, version=self.version, needs_answers=needs_labels(role))
            for role, path in paths.items()
        }
        tuned = request.tuned.get(TUNED_THRESHOLD)
        found = {self.version, *(file.version for file in files.values())}
        is_2_0 = "2.0" in found or (self.version == "auto" and tuned is not None)
        version: Version = "2.0" if is_2_0 else "1.1"
        threshold = tuned if self.null_threshold is None else self.null_threshold
        options = SquadOptions(
            version=version,
            max_length=request.max_length,
            stride=self.stride,
            max_query_length=self.max_query_length,
            max_answer_length=self.max_answer_length,
            n_best=self.n_best,
        )
        notes: list[str] = []
        splits: dict[str, Split] = {}
        for role, file in files.items():
            splits[role] = split = SquadSplit(
                file.questions, request.tokenizer, options, role=role, threshold=threshold
            )
            notes += _notes(paths[role], split, file.questions, options)
        if version == "2.0" and threshold is None and "dev" not in splits:
            notes.append("task.null_threshold: found none set or tuned on a dev set: 0 is used")
        return Family(
            heads=HeadsSection(
                pooler=False, mlm=False, next_sentence=False, task="question_answering"
            ),
            best_metric="f1",
            splits=splits,
            notes=tuple(notes),
            score=functools.partial(_score, version),
            write_official=functools.partial(_write_json, version),
        )


def _score(version: Version, records: Sequence[Record]) -> dict[str, float]:
    """Returns the figures of the official scripts, in percent; ValueError: an unlabelled record.

    "exact_match" and "f1" of the predictions. In version 2.0 also those of the questions with and
    without an answer ("has_ans_…", "no_ans_…"), and "best_exact", "best_f1" and "null_threshold" as
    tuned on these records; predictions of the dev set were made with that threshold unless one was
    set.
    """
    unlabelled = sum(record["label"] is None for record in records)
    if unlabelled or not records:
        raise ValueError(f"{unlabelled} of {len(records)} records are not labelled")
    return figures_1_1(records) if version == "1.1" else figures_2_0(records)


def _write_json(
    version: Version, split: str, records: Sequence[Record], directory: Path
) -> Sequence[Path]:
    """Writes predictions as `run_squad.py` does and as the official scripts read them.

    Returns `predictions.json` (id → text), `nbest_predictions.json` and, in version 2.0,
    `null_odds.json` (id → null score difference); of every split under the same names.
    """
    keys = {"predictions": "prediction", "nbest_predictions": "nbest"}
    if version == "2.0":
        keys["null_odds"] = "null_score_difference"
    written: list[Path] = []
    for name, key in keys.items():
        path = directory / f"{name}.json"
        content = json.dumps({record["id"]: record[key] for record in records}, indent=4)
        write_whole(epath.Path(path), f"{content}\n".encode("ascii"))
        written.append(path)
    return written


def _notes(
    path: Path | MemoryTable,
    split: SquadSplit,
    questions: Sequence[SquadQuestion],
    options: SquadOptions,
) -> list[str]:
    if split.skipped and not split.examples:
        raise UserError(f"{path}: found no answer that is in its context, allowed: at least one")
    answered = sum(bool(question.answers) for question in questions)
    found = {
        f"of {answered:,} answers are not in their context at the place named: skipped": (
            split.skipped
        ),
        f"of {len(questions):,} questions are longer than {options.max_query_length} pieces: cut "
        "(task.max_query_length)": split.cut_questions,
    }
    return count_notes(path, found)
