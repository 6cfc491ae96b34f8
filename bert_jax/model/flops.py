"""Model FLOPs: the matrix products of the mathematics, without what the program recomputes."""

from bert_jax.model.config import Architecture


def forward_flops(
    architecture: Architecture,
    *,
    seq_length: int,
    read: int | None = None,
    predictions: int = 0,
    examples: int = 1,
) -> float:
    """Returns the FLOPs of one row's forward pass through encoder and pretraining heads.

    A product of [m, k] with [k, n] counts 2·m·k·n; lookups, softmax, LayerNorm and GELU are left
    out, as in PaLM's definition of MFU (arXiv 2204.02311, appendix B).
    `seq_length` counts padding too, `read` the tokens whose states heads read (None: all; of others
    the last layer has keys and values alone), `predictions` masked positions, `examples` [CLS]
    tokens.
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


def train_flops(
    architecture: Architecture,
    *,
    seq_length: int,
    read: int | None = None,
    predictions: int = 0,
    examples: int = 1,
) -> float:
    """Returns the FLOPs of one row's forward and backward pass: three forward passes."""
    return 3 * forward_flops(
        architecture,
        seq_length=seq_length,
        read=read,
        predictions=predictions,
        examples=examples,
    )
