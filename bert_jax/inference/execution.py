"""How a model is computed in inference: the kernels and the dtype of a forward pass."""

from typing import Literal, TypeAlias

import jax
from jax.sharding import Mesh

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.kernel_choice import resolve_execution
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Dtype, Execution, HeadsSection
from bert_jax.runs.open_checkpoints import LoadedParams
from bert_jax.runs.run_directory import Run
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
