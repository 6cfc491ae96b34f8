"""Counts the epochs of a run: how often it reads its rows and their text. Does not import JAX."""

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
    rows: int  # rows of an epoch
    epochs: float
    copies: float  # passes over the text in an epoch: over the most repeated language
    fewest: float  # the same over the least repeated language
    masks_are_stored: bool
    is_packed: bool  # whether a row has several examples
    text: Hashable  # equal for datasets of the same text

    @classmethod
    def of(
        cls, phase: int, section: PhaseSection, *, rows: int, made: Provenance | None
    ) -> "PhaseEpochs":
        """Counts the epochs of a phase.

        `rows`: rows of an epoch. `made`: record of the dataset; None for TFRecords, whose copies
        are unknown.
        """
        read = (section.steps - section.ramp_steps) * section.batch_size
        read += sum(stage.steps * stage.batch_size for stage in section.batch_ramp)
        copies, text = [1.0], section.dataset
        if made is not None:
            languages = (made.splits[_TRAIN].languages or {}).values()
            passes = [language.passes for language in languages if language.passes]
            copies = passes or [float(made.pairing.dupe_factor)]
            text = made.text.files
        epochs = read / rows
        return cls(
            phase=phase,
            dataset=section.dataset,
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
        text = f"phase {self.phase}: {_number(self.epochs)} epochs of {rows}"
        if self.masks_are_stored:
            return f"{text} with stored masks"
        if self.fewest != self.copies:
            return (
                f"{text}, which have the languages {_number(self.fewest)} "
                f"to {_number(self.copies)} times"
            )
        return (
            text
            if self.copies == 1
            else f"{text}, which have the text {_number(self.copies)} times"
        )


def count_epochs(train: TrainSection) -> Iterator[PhaseEpochs]:
    """Yields the epochs of each phase whose dataset is on this machine and valid.

    Skips TFRecords, whose first opening reads every byte.
    """
    for at, phase in enumerate(train.phases):
        root = epath.Path(phase.dataset)
        if is_remote(phase.dataset) or not (root / PROVENANCE_NAME).exists():
            continue
        try:
            made = read_provenance(root)
            rows = made.splits[_TRAIN].examples
            if phase.max_examples > 1:
                counts = LengthIndex(open_dataset(root, _TRAIN).lengths).counts
                rows = PackingPlan(
                    counts, capacity=phase.seq_length, max_examples=phase.max_examples
                ).rows
        except (UserError, KeyError):  # other checks refuse them
            continue
        if rows:
            yield PhaseEpochs.of(at, phase, rows=rows, made=made)


def describe_epochs(found: Sequence[PhaseEpochs]) -> tuple[str, bool]:
    """Returns a sentence on the phases, and whether a text is read more than `MOST` times."""
    sums: dict[Hashable, float] = defaultdict(float)
    for each in found:
        sums[each.text] += each.epochs * each.copies
    most = max(sums.values())
    line = f"{'; '.join(each.describe() for each in found)}: {_number(most)} passes over the text"
    if most > MOST:
        line += f", more than {MOST} (BERT's number). Use fewer steps or more text"
    return f"{line}.", most > MOST


def _number(value: float) -> str:
    """Returns a number with at least three digits: ``"70,000"``, ``"12.5"``, ``"0.031"``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
