"""Checks how many of the wanted predictions the masks of words have. Does not import JAX."""

from collections.abc import Iterator

from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.loader.mask_share import measure_masks
from bert_jax.diagnostics.findings import Finding, ok, warn
from bert_jax.errors import UserError
from bert_jax.files.remote import is_remote
from bert_jax.objectives.registry import Registered, masking_of
from bert_jax.objectives.sections import masked_rows
from bert_jax.text import load_tokenizer
from bert_jax.workflows.pretraining_settings import TrainSection


def check_masks(
    train: TrainSection, *, tokenizer: str, objective: Registered, seed: int
) -> Iterator[Finding]:
    """Yields a finding for each phase that masks words of a local dataset.

    Skips inputs that other checks refuse.
    """
    for phase in train.phases:
        masking = masking_of(phase.objective or objective)
        root = phase.dataset
        if masking is None or is_remote(root) or not (epath.Path(root) / PROVENANCE_NAME).exists():
            continue
        try:
            rows = masked_rows(
                load_tokenizer(tokenizer),
                masking,
                seq_length=phase.seq_length,
                max_predictions=phase.max_predictions,
                max_examples=1,
                pairs=False,
            )
            found = measure_masks(open_dataset(root, "train"), rows, seed=seed)
        except UserError:
            continue
        if found is not None:
            yield (warn if found.low else ok)("masks", f"{root}: {found.describe()}")
