"""Counts the epochs of a run: how often it reads its rows and their text. Does not import JAX."""

import contextlib
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME, Provenance, read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.loader.packing import PackingPlan
from bert_jax.data.loader.row_order import LengthIndex
from bert_jax.errors import UserError, counted
from bert_jax.files.remote import is_remote
from bert_jax.workflows.pretraining_settings import PhaseSection, TrainSection

MOST: Final = 40  # passes over the text in BERT's pretraining (arXiv 1810.04805, appendix A.2)
_TRAIN: Final = "train"


class PhaseEpochs(NamedTuple):
    """How often a phase reads its data."""

    phase: int
    dataset: str
    is_mixed: bool  # whether the phase has other datasets too
    rows: int  # rows of an epoch
    epochs: float
    copies: float  # passes over the text in an epoch: over the most repeated language
    fewest: float  # the same over the least repeated language
    masks_are_stored: bool
    is_packed: bool  # whether a row has several examples
    text: Hashable  # equal for datasets of the same text

    @classmethod
    def of(
        cls,
        phase: int,
        section: PhaseSection,
        path: str,
        *,
        read: int,
        rows: int,
        made: Provenance | None,
    ) -> "PhaseEpochs":
        """Counts the epochs of a phase over one of its datasets.

        `path`: directory of the dataset. `read`: rows that the phase reads from it. `rows`: rows of
        an epoch. `made`: record of the dataset; None for TFRecords, whose copies are unknown.
        """
        copies, text = [1.0], path
        if made is not None:
            languages = (made.splits[_TRAIN].languages or {}).values()
            passes = [language.passes for language in languages if language.passes]
            copies = passes or [float(made.pairing.dupe_factor)]
            text = made.text.files
        epochs = read / rows
        return cls(
            phase=phase,
            dataset=path,
            is_mixed=section.is_mixed,
            rows=rows,
            epochs=epochs,
            copies=max(copies),
            fewest=min(copies),
            masks_are_stored=made is None,
            is_packed=section.packing is not None,
            text=text,
        )

    def describe(self) -> str:
        """Returns ``"phase 0: 70,000 epochs of 2,064 rows"``, with the copies of the text."""
        rows = counted(self.rows, "packed row" if self.is_packed else "row")
        name = f", {self.dataset}" if self.is_mixed else ""
        text = f"phase {self.phase}{name}: {format_epochs(self.epochs)} epochs of {rows}"
        if self.masks_are_stored:
            return f"{text} with stored masks"
        if self.fewest != self.copies:
            return (
                f"{text}, which have the languages {format_epochs(self.fewest)} "
                f"to {format_epochs(self.copies)} times"
            )
        return (
            text
            if self.copies == 1
            else f"{text}, which have the text {format_epochs(self.copies)} times"
        )


def count_epochs(train: TrainSection) -> Iterator[PhaseEpochs]:
    """Yields the epochs of each phase whose dataset is on this machine and valid.

    Skips TFRecords, whose first opening reads every byte.
    """
    for at, phase in enumerate(train.phases):
        with contextlib.suppress(UserError, KeyError):  # other checks refuse them
            yield from _epochs_of(at, phase)


def _epochs_of(at: int, phase: PhaseSection) -> list[PhaseEpochs]:
    if not all(is_here(path) for path in phase.paths):
        return []
    made = {path: read_provenance(epath.Path(path)) for path in phase.paths}
    rows = {path: found.splits[_TRAIN].examples for path, found in made.items()}
    if not all(rows.values()):
        return []
    read = [phase.total_rows]
    if phase.is_mixed or phase.max_examples > 1:
        lengths = {path: open_dataset(path, _TRAIN).lengths for path in phase.paths}
        if phase.is_mixed:
            tokens = {path: int(found.sum()) for path, found in lengths.items()}
            read = phase.mixture(tokens).counts(phase.total_rows)
        if phase.max_examples > 1:
            sizes = {"capacity": phase.seq_length, "max_examples": phase.max_examples}
            rows = {
                path: PackingPlan(LengthIndex(found).counts, **sizes).rows
                for path, found in lengths.items()
            }
    return [
        PhaseEpochs.of(at, phase, path, read=own, rows=rows[path], made=made[path])
        for path, own in zip(phase.paths, read, strict=True)
    ]


def is_here(path: str) -> bool:
    """Returns whether a path is a dataset on this machine."""
    return not is_remote(path) and (epath.Path(path) / PROVENANCE_NAME).exists()


def describe_epochs(found: Sequence[PhaseEpochs]) -> tuple[str, bool]:
    """Returns a sentence on the phases, and whether a text is read more than `MOST` times."""
    sums: dict[Hashable, float] = defaultdict(float)
    for each in found:
        sums[each.text] += each.epochs * each.copies
    most = max(sums.values())
    phases = "; ".join(each.describe() for each in found)
    line = f"{phases}: {format_epochs(most)} passes over the text"
    if most > MOST:
        line += f", more than {MOST} (BERT's number). Use fewer steps or more text"
    return f"{line}.", most > MOST


def format_epochs(value: float) -> str:
    """Returns a number with at least three digits: ``"70,000"``, ``"12.5"``, ``"0.031"``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
