"""Question answering on SQuAD 1.1 and 2.0: the task family."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.model.config import HeadsSection
from bert_jax.tasks.family import Opening, Record, Split
from bert_jax.tasks.squad.file import Question, SquadFile, Version, read_squad
from bert_jax.tasks.squad.scores import figures_1_1, figures_2_0
from bert_jax.tasks.squad.section import SquadSection
from bert_jax.tasks.squad.split import SPECIAL_PIECES, SquadSplit

TUNED_THRESHOLD = "null_threshold"  # among the figures of a run's dev evaluation


class SquadFamily:
    """Opened SQuAD files; satisfies `Family`."""

    heads = HeadsSection(pooler=False, mlm=False, next_sentence=False, task="question_answering")
    best_metric = "f1"
    class_weights: Sequence[float] | None = None

    def __init__(
        self, splits: Mapping[str, Split], *, version: Version, notes: Sequence[str]
    ) -> None:
        """Takes what `open_squad` found.

        Args:
            splits: by role.
            version: of the task: 2.0 if a question may have no answer.
            notes: what the data's owner should know.
        """
        self.splits, self.version, self.notes = splits, version, notes

    def score(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the figures of the official scripts, in percent.

        Args:
            records: of a labelled split.

        Returns:
            "exact_match" and "f1" of the predictions as they stand. In version 2.0 also those of
            the questions with and without an answer ("has_ans_…", "no_ans_…"), and "best_exact",
            "best_f1" and "null_threshold" as tuned on these records; predictions of the dev set
            were made with that threshold unless one was set.

        Raises:
            ValueError: a record is not labelled.
        """
        unlabelled = sum(record["label"] is None for record in records)
        if unlabelled or not records:
            raise ValueError(f"{unlabelled} of {len(records)} records are not labelled")
        return figures_1_1(records) if self.version == "1.1" else figures_2_0(records)

    def write_official(
        self, split: str, records: Sequence[Record], directory: Path
    ) -> Sequence[Path]:
        """Writes predictions as `run_squad.py` does and as the official scripts read them.

        Args:
            split: whose records they are; the names of the files are the same for each.
            records: of all its questions.
            directory: where to write.

        Returns:
            `predictions.json` (id → text), `nbest_predictions.json` and, in version 2.0,
            `null_odds.json` (id → null score difference).

        Raises:
            UserError: the directory cannot be written to.
        """
        keys = {"predictions": "prediction", "nbest_predictions": "nbest"}
        if self.version == "2.0":
            keys["null_odds"] = "null_score_difference"
        written: list[Path] = []
        for name, key in keys.items():
            path = directory / f"{name}.json"
            content = json.dumps({record["id"]: record[key] for record in records}, indent=4)
            write_whole(epath.Path(path), f"{content}\n".encode("ascii"))
            written.append(path)
        return written


def open_squad(section: SquadSection, opening: Opening) -> SquadFamily:
    """Reads the files of the roles asked for.

    Args:
        section: the files and how to cut and answer.
        opening: tokenizer, lengths and roles.

    Returns:
        The family, with a split for each role.

    Raises:
        UserError: a role without a file, a file that is not as it should be, or rows that hold no
          context.
    """
    least = section.max_query_length + SPECIAL_PIECES + 1
    if opening.max_length < least:
        raise UserError(
            f"max_length: found {opening.max_length}, allowed: at least {least} where "
            f"task.max_query_length is {section.max_query_length}"
        )
    files = {role: _read(section, opening, role) for role in opening.roles}
    version: Version = "1.1"
    if "2.0" in {section.version, *(file.version for _, file in files.values())} or (
        section.version == "auto" and TUNED_THRESHOLD in opening.tuned
    ):
        version = "2.0"
    threshold = section.null_threshold
    if threshold is None:
        threshold = opening.tuned.get(TUNED_THRESHOLD)
    notes: list[str] = []
    splits: dict[str, Split] = {}
    for role, (path, file) in files.items():
        splits[role] = split = SquadSplit(
            file.questions,
            opening.tokenizer,
            section,
            max_length=opening.max_length,
            version=version,
            role=role,
            threshold=threshold,
        )
        notes += _notes(path, split, file.questions, section)
    if version == "2.0" and threshold is None and "dev" not in splits:
        notes.append("task.null_threshold: found none set or tuned on a dev set: 0 is used")
    return SquadFamily(splits, version=version, notes=tuple(notes))


def _read(section: SquadSection, opening: Opening, role: str) -> tuple[str | Path, SquadFile]:
    path: str | Path | None = opening.input if role == "input" else getattr(section, role)
    if path is None:
        raise UserError(f"task.{role}: found none, allowed: a SQuAD file (JSON)")
    needs_answers = role in ("train", "dev")
    return path, read_squad(path, version=section.version, needs_answers=needs_answers)


def _notes(
    path: str | Path, split: SquadSplit, questions: Sequence[Question], section: SquadSection
) -> list[str]:
    notes: list[str] = []
    if split.skipped:
        answered = sum(bool(question.answers) for question in questions)
        notes.append(
            f"{path}: {split.skipped:,} of {answered:,} answers are not in their context at the "
            "place named: skipped"
        )
        if not split.examples:
            raise UserError(
                f"{path}: found no answer that is in its context, allowed: at least one"
            )
    if split.cut_questions:
        notes.append(
            f"{path}: {split.cut_questions:,} of {len(questions):,} questions are longer than "
            f"{section.max_query_length} pieces: cut (task.max_query_length)"
        )
    return notes
