"""How a model is computed in inference: the kernels and the dtype of a forward pass."""

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.kernel_choice import resolve_execution
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Dtype, Execution, HeadsSection
from bert_jax.parallel.sharding_rules import of_entry
from bert_jax.runs.open_checkpoints import LoadedParams
from bert_jax.runs.run_directory import Run
from bert_jax.task import Params
from bert_jax.train.state import ModelDefinition, define_model

ForwardDtype: TypeAlias = Literal["auto"] | Dtype
"""Dtype of activations. `auto`: bfloat16 on TPU and GPU, float32 on a CPU."""


def inference_execution(
    execution: Execution,
    *,
    architecture: EncoderArchitecture,
    mesh: Mesh,
    longest: int,
    dtype: ForwardDtype | None = None,
) -> Execution:
    """Returns the execution of a forward pass on a mesh, without `auto` and unset settings.

    A forward pass has no dropout, so the rates of the architecture rule out no kernel.

    Args:
        execution: settings. Other kernels than `xla` become `auto`.
        architecture: sizes of the model.
        mesh: devices.
        longest: length of the longest rows in tokens.
        dtype: dtype of activations. Default: the dtype of `execution`.
    """
    if dtype == "auto":
        dtype = "float32" if mesh.devices.flat[0].platform == "cpu" else "bfloat16"
    execution = execution.elsewhere().model_copy(update={} if dtype is None else {"dtype": dtype})
    return resolve_execution(
        execution, architecture=architecture.with_dropout(0.0), mesh=mesh, longest=longest
    )


def forward_model(
    architecture: EncoderArchitecture,
    execution: Execution,
    heads: HeadsSection,
    *,
    mesh: Mesh,
    longest: int | None = None,
    dtype: ForwardDtype | None = None,
) -> ModelDefinition:
    """Returns the definition of a model for inference, see `inference_execution`.

    The default of `longest` is the number of the model's positions.
    """
    resolved = inference_execution(
        execution,
        architecture=architecture,
        mesh=mesh,
        longest=longest or architecture.max_position_embeddings,
        dtype=dtype,
    )
    return define_model(encoder_builder(architecture, resolved, heads))


def forward_model_of_run(
    run: Run, *, mesh: Mesh, longest: int | None = None, dtype: ForwardDtype | None = None
) -> ModelDefinition:
    """Returns the definition of a run's model for inference, see `forward_model`."""
    return forward_model(
        *(run.architecture, run.model.execution, run.heads), mesh=mesh, longest=longest, dtype=dtype
    )


def in_read_dtypes(loaded: LoadedParams) -> LoadedParams:
    """Returns parameters in the dtypes in which the model reads them.

    The outputs stay equal, but no batch casts parameters again. In bfloat16, matrices and the
    vocabulary's table take half the memory.
    """
    params = jax.tree.map(lambda one, dtype: one.astype(dtype), loaded.params, loaded.model.dtypes)
    return loaded._replace(params=params)


def by_layer(params: Params, model: ModelDefinition, *, mesh: Mesh) -> Any:
    """Returns parameters with a tuple of one array per layer for each stacked array, on a TPU.

    A TPU fetches a layer's array while it computes, but copies a slice of a stacked array before it
    computes. In the compiled program, pass them through `stacked_again`. On other devices, the
    layers are a loop, which needs stacked arrays.
    """
    if mesh.devices.flat[0].platform != "tpu":
        return params
    return jax.tree.map(
        lambda one, axes: tuple(_entries(one)) if axes[0] == "layers" else one, params, model.axes
    )


def stacked_again(params: Any) -> Params:
    """Returns the parameters of `by_layer` as the model reads them. XLA moves no array for it."""

    def is_cut(node: Any) -> bool:
        return isinstance(node, tuple)

    return jax.tree.map(lambda one: jnp.stack(one) if is_cut(one) else one, params, is_leaf=is_cut)


def _entries(stack: Any) -> list[Any]:
    """Returns the entries of an array, or of its shape, along its first axis."""
    if not isinstance(stack, jax.ShapeDtypeStruct):
        return list(stack)
    sharding = of_entry(stack.sharding)
    shape = jax.ShapeDtypeStruct(stack.shape[1:], stack.dtype, sharding=sharding)
    return [shape] * stack.shape[0]
