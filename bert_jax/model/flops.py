"""Model FLOPs: the matrix products of the mathematics, without what the program recomputes."""

from bert_jax.model.config import Architecture


def forward_flops(
    architecture: Architecture, *, seq_length: int, predictions: int, examples: int = 1
) -> float:
    """Returns the FLOPs of one row's forward pass through encoder and pretraining heads.

    A product of [m, k] with [k, n] counts 2·m·k·n; lookups, softmax, LayerNorm and GELU are left
    out, as in PaLM's definition of MFU (arXiv 2204.02311, appendix B).
    `seq_length` counts padding too, `predictions` masked positions, `examples` [CLS] tokens.
    """
    width, inner = architecture.hidden_size, architecture.intermediate_size
    projections = 2 * seq_length * (4 * width * width + 2 * width * inner)
    attention = 2 * 2 * seq_length * seq_length * width
    mlm = 2 * predictions * (width * width + width * architecture.vocab_size)
    next_sentence = 2 * examples * (width * width + 2 * width)
    return float(architecture.num_hidden_layers * (projections + attention) + mlm + next_sentence)


def train_flops(
    architecture: Architecture, *, seq_length: int, predictions: int, examples: int = 1
) -> float:
    """Returns the FLOPs of one row's forward and backward pass: three forward passes."""
    return 3 * forward_flops(
        architecture, seq_length=seq_length, predictions=predictions, examples=examples
    )
