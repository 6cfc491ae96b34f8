"""Builds the model of an encoder."""

from collections.abc import Callable

from bert_jax.encoders.registry import encoder_module
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.compiling import made_once


def model_type(architecture: EncoderArchitecture) -> type[EncoderModel]:
    """Returns the class of an architecture's model."""
    return encoder_module(architecture.kind, "model").MODEL


@made_once
def encoder_builder(
    architecture: EncoderArchitecture, execution: Execution, heads: HeadsSection
) -> Callable[[], EncoderModel]:
    """Returns a function that builds the model, for `define_model`."""

    def build() -> EncoderModel:
        return model_type(architecture)(architecture=architecture, execution=execution, heads=heads)

    return build
