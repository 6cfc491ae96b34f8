"""Compares a model with the files that were written from it."""

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.encoders.build import encoder_builder
from bert_jax.interop.tensor_conversion import Params, Pretrained, flatten, unflatten
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.compiling import made_once
from bert_jax.task import Batch
from bert_jax.train.state import define_model

LONGEST: Final = 160  # tokens of a row: more than the window of released ModernBERT models
SCORED: Final = 8  # number of positions per row whose MLM logits are compared


def largest_difference(model: Pretrained, written: Pretrained) -> float:
    """Returns the largest difference between the logits of a model and of its written files.

    Both compute the heads that were written, in float32, for the same two rows of up to 160 tokens.
    Without a head, the hidden states and the pooled vectors are compared.

    Args:
        model: the model in memory.
        written: the result of reading the files.
    """
    batch = _fixed_batch(model.architecture)
    ours = _outputs(model.architecture, written.heads)(model.params, batch)
    theirs = _outputs(written.architecture, written.heads)(written.params, batch)
    differences = jax.tree.map(lambda one, other: jnp.abs(one - other).max(), ours, theirs)
    return float(max(jax.tree.leaves(differences)))


def _fixed_batch(architecture: EncoderArchitecture) -> Batch:
    """Returns two rows. The second half of the second row is padding."""
    length = min(architecture.max_position_embeddings, LONGEST)
    places = np.arange(2 * length, dtype=np.int32).reshape(2, length)
    types = (places % length > length // 3) & (getattr(architecture, "type_vocab_size", 1) > 1)
    is_token = places < length + max(1, length // 2)
    return {
        "input_ids": jnp.asarray(places * 7919 % architecture.vocab_size),
        "token_type_ids": jnp.asarray(types.astype(np.int32)),
        "segment_ids": jnp.asarray(is_token.astype(np.int32)),
    }


@made_once
def _outputs(
    architecture: EncoderArchitecture, heads: HeadsSection
) -> Callable[[Params, Batch], dict[str, Any]]:
    """Returns the function from parameters and a batch to the outputs of the heads."""
    # A loop over the layers compiles faster than unrolled layers.
    execution = Execution(dtype="float32", unroll=1)
    definition = define_model(encoder_builder(architecture, execution, heads))

    @jax.jit
    def outputs(params: Params, batch: Batch) -> dict[str, Any]:
        model = nnx.merge(definition.graphdef, params)
        hidden_BLD = model.hidden(batch, dropout_key=None)
        found = {}
        if heads.mlm:
            positions = jnp.broadcast_to(jnp.arange(SCORED) % hidden_BLD.shape[1], (2, SCORED))
            found["mlm"] = model.mlm_logits(hidden_BLD, positions)
        if heads.next_sentence:
            found["next_sentence"] = model.next_sentence_logits(hidden_BLD[:, :1])
        if heads.replaced_tokens:
            found["replaced_tokens"] = model.replaced_token_logits(hidden_BLD, batch["segment_ids"])
        if heads.task is not None:
            found["task"] = model.task_logits(hidden_BLD, batch["segment_ids"])
        if heads.vectors is not None:
            found["embedding"] = model.embedded_states(hidden_BLD, batch["segment_ids"])
        if not found:
            found["hidden"] = hidden_BLD
            if heads.pooler:
                found["pooled"] = model.pooled(hidden_BLD[:, :1])
        return found

    paths = flatten(definition.params)

    def of_model(params: Params, batch: Batch) -> dict[str, Any]:
        arrays = flatten(params)
        return outputs(unflatten({path: arrays[path] for path in paths}), batch)

    return of_model
