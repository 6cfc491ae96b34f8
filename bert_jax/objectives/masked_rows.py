"""The rows of objectives with masked tokens."""

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.task import RowTransform
from bert_jax.text.tokenizer import Tokenizer


def masked_rows(
    tokenizer: Tokenizer,
    masking: MaskingSection,
    *,
    seq_length: int,
    max_predictions: int | None,
    max_examples: int,
    pairs: bool,
) -> RowTransform:
    """Returns the transform to masked rows, see `Objective.features`.

    If `max_predictions` is None, `masking` computes it. `pairs` is whether the rows have the arrays
    of a pair task.
    """
    if max_predictions is not None:
        masking = masking.model_copy(update={"max_predictions": max_predictions})
    return MaskingTransform.from_tokenizer(
        tokenizer, seq_length=seq_length, masking=masking, max_examples=max_examples, pairs=pairs
    )
