"""Model FLOPs: the matrix products of the mathematics, without what the program recomputes."""

from typing import Final

from bert_jax.model.config import Architecture

TRAINING: Final = 3
"""Forward passes that a forward and a backward pass cost."""


def forward_flops(
    architecture: Architecture,
    *,
    seq_length: int,
    read: int | None = None,
    predictions: int = 0,
    examples: int = 1,
) -> float:
    """Returns the FLOPs of one row's forward pass through encoder and pretraining heads.

    A product of [m, k] with [k, n] counts 2·m·k·n. Lookups, softmax, LayerNorm and GELU count
    nothing, as in PaLM's definition of MFU (arXiv 2204.02311, appendix B).

    Args:
        architecture: of the model.
        seq_length: tokens of the row, padding included.
        read: tokens whose states the heads read, None for all. The last layer computes only keys
            and values of the others.
        predictions: masked positions.
        examples: [CLS] tokens.
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
