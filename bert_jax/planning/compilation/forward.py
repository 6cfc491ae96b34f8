"""Lowers the forward program of `bert-jax score` for a device, from shapes instead of arrays."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.corpus.job import reads_head, rows_of_batch, tokens_of_batch, vector_settings
from bert_jax.corpus.program import INPUT_IDS, LENGTHS, SECONDS, jit_forward
from bert_jax.feature_extraction.extractor import vector_forward
from bert_jax.inference.execution import by_layer, forward_model
from bert_jax.model.text_head import PoolingSection
from bert_jax.parallel.sharding_rules import batch_sharding
from bert_jax.planning.compilation.lowering import LoweredStep, device_bytes
from bert_jax.planning.request import ForwardRequest
from bert_jax.tasks.predictor import task_forward
from bert_jax.train.state import ModelDefinition, abstract_params


def lower_forward(request: ForwardRequest, mesh: Mesh) -> LoweredStep:
    """Returns the program that `score` would compile for batches of one length on one device.

    Raises UserError if the model has no such output, or fewer positions than the rows.
    """
    section, heads = request.score, request.model.heads
    architecture = request.model.resolve(vocab_size=request.vocab_size)
    model = forward_model(
        architecture, request.model.execution, heads, mesh=mesh, dtype=section.dtype
    )
    forward, reads_all = _forward(request, model)
    tokens = tokens_of_batch(section, on_cpu=False)
    rows = rows_of_batch(tokens, request.length, on_cpu=False)

    def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=batch_sharding(mesh))

    ids = jnp.uint16 if request.vocab_size <= 1 << 16 else jnp.int32
    batch = {INPUT_IDS: array(request.length, dtype=ids), LENGTHS: array()}
    if section.pair is not None:
        batch[SECONDS] = array()
    params = jax.tree.map(
        lambda one, dtype: jax.ShapeDtypeStruct(one.shape, dtype, sharding=one.sharding),
        abstract_params(model, mesh),
        model.dtypes,
    )
    with jax.set_mesh(mesh):
        lowered = jit_forward(forward, mesh).lower(by_layer(params, model, mesh=mesh), batch)
    flops = architecture.forward_flops(seq_length=request.length, read=None if reads_all else 1)
    return LoweredStep(
        lowered=lowered,
        rows=rows,
        flops=rows * flops,
        parameter_bytes=device_bytes(params),
        optimizer_bytes=0,
        beside_bytes=0,
        copy_bytes=0,
    )


def _forward(
    request: ForwardRequest, model: ModelDefinition
) -> tuple[Callable[[Any, Any], jax.Array], bool]:
    """Returns the function of a batch, and whether it reads all states of the last layer."""
    section, heads = request.score, request.model.heads
    architecture = request.model.resolve(vocab_size=request.vocab_size)
    if reads_head(section, heads):
        return task_forward(model), not heads.scores_rows
    # The prefix of a prompt is text: it does not change the program.
    changes = {"max_length": request.length, "prompt": None}
    settings = vector_settings(section.model_copy(update=changes), architecture, heads)
    trained = settings.trained
    mean = not isinstance(trained, PoolingSection) or trained.pool == "mean"
    return vector_forward(settings, model), mean
