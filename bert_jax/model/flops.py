"""Model FLOPs: the matrix products of the model, without recomputation."""

from typing import Final

from bert_jax.model.config import Architecture

TRAINING: Final = 3
"""FLOPs of a train step in units of a forward pass: one forward, two backward."""


def forward_flops(
    architecture: Architecture,
    *,
    seq_length: int,
    read: int | None = None,
    predictions: int = 0,
    examples: int = 1,
) -> float:
    """Returns the FLOPs of one row's forward pass through encoder and pretraining heads.

    A product of [m, k] with [k, n] has 2·m·k·n FLOPs. Lookups, softmax, LayerNorm and GELU are not
    included, as in PaLM's definition of MFU (arXiv 2204.02311, appendix B).

    Args:
        architecture: sizes of the model.
        seq_length: tokens of the row, padding included.
        read: number of tokens whose states the heads read. Default: all. For other tokens, the last
            layer computes only keys and values.
        predictions: number of masked positions.
        examples: number of [CLS] tokens.
    """
    width, inner = architecture.hidden_size, architecture.intermediate_size

    def layer(queries: int) -> int:
        projections = 2 * (queries * (2 * width * width + 2 * width * inner))
        keys_and_values = 2 * seq_length * 2 * width * width
        return projections + keys_and_values + 2 * 2 * queries * seq_length * width

    encoder = (architecture.num_hidden_layers - 1) * layer(seq_length)
    encoder += layer(seq_length if read is None else read)
    mlm = 2 * predictions * (width * width + width * architecture.vocab_size)
    next_sentence = 2 * examples * (width * width + 2 * width)
    return float(encoder + mlm + next_sentence)
