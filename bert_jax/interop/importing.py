"""Reads checkpoints of other programs, and puts them on devices."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jax
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.inference.bucketed import InferenceModel
from bert_jax.inference.execution import ForwardDtype, forward_model
from bert_jax.interop import cross_encoder, late_interaction, sentence_transformers, sparse_encoder
from bert_jax.interop.hf_checkpoint import is_hf, read_hf
from bert_jax.interop.sentence_transformers import encoder_directory, is_sentence_transformers
from bert_jax.interop.sentence_transformers_sections import TextHeadFormat
from bert_jax.interop.sentencepiece_file import read_albert_model
from bert_jax.interop.sources import no_directory
from bert_jax.interop.tensor_conversion import Params, Pretrained
from bert_jax.interop.tf_checkpoint import is_tf, read_tf
from bert_jax.model import text_head
from bert_jax.model.section import Execution
from bert_jax.runs.open_checkpoints import LoadedParams
from bert_jax.runs.settings import CONFIG
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.library_tokenizer import PIPELINE_FILE
from bert_jax.text.roberta_files import MERGES_FILE
from bert_jax.text.sentence_piece import MODEL_FILE
from bert_jax.text.wordpiece import VOCAB_FILE
from bert_jax.train.state import abstract_params

# To register the files of a text head, add its format here.
TEXT_HEADS: Final[Mapping[type[text_head.TextHeadSection], TextHeadFormat]] = {
    text_head.TokenVectorsSection: late_interaction.FORMAT,
    text_head.PoolingSection: sentence_transformers.FORMAT,
    text_head.SparseHeadSection: sparse_encoder.FORMAT,
    text_head.CrossEncoderSection: cross_encoder.FORMAT,
}


def read_checkpoint(
    source: Path, *, tokenizer: str | None = None, lower_case: bool | None = None
) -> Pretrained:
    """Reads a checkpoint of Hugging Face, sentence-transformers or google-research.

    Args:
        source: directory of the checkpoint, or the prefix of a TensorFlow checkpoint's files.
        tokenizer: tokenizer directory, for a checkpoint without a tokenizer.
        lower_case: whether to lower-case text, for a vocab.txt without tokenizer_config.json, or
            ALBERT's SentencePiece model.

    Raises:
        UserError: if there is no readable checkpoint, or a tensor does not fit the configuration.
    """
    directory = source if source.is_dir() else source.parent
    if not directory.is_dir():
        raise no_directory(directory)
    given: Tokenizer | None = None
    if tokenizer is not None:
        given = load_tokenizer(tokenizer)
    elif lower_case is not None:
        if is_sentence_transformers(directory):
            directory = encoder_directory(directory)
        given = _with_casing(directory, lower_case=lower_case)
    if is_tf(source):
        return read_tf(source, tokenizer=given or load_tokenizer(directory))
    for format in TEXT_HEADS.values():
        if format.fits(source):
            return format.read(source, tokenizer=given)
    if is_hf(source):
        return read_hf(source, tokenizer=given)
    found, near = "no checkpoint", ""
    if (source / CONFIG).exists():
        found = "a run, which needs no import"
    elif source.is_file() and is_hf(directory):
        found, near = "a file", f'; did you mean "{directory}"?'
    allowed = f"a checkpoint (config.json and weights, or *.index and *.data-*){near}"
    raise UserError.wrong("import.no_checkpoint", found, allowed, place=source)


def _with_casing(directory: Path, *, lower_case: bool) -> Tokenizer:
    """Opens a vocab.txt, or ALBERT's SentencePiece model, whose casing the user has named."""
    if not (directory / VOCAB_FILE).exists():
        for name in (PIPELINE_FILE, MERGES_FILE):
            if (directory / name).exists():
                raise UserError(
                    "import.casing_known",
                    f"{name} determines the casing. Omit --uncased and --cased.",
                    place=directory,
                )
        if (directory / MODEL_FILE).exists():
            return read_albert_model(directory / MODEL_FILE, lower_case=lower_case)
    return load_tokenizer(directory, lower_case=lower_case)


def model_in_memory(
    model: Pretrained,
    *,
    mesh: Mesh,
    name: str,
    longest: int | None = None,
    dtype: ForwardDtype = "float32",
) -> InferenceModel:
    """Puts another program's checkpoint on devices. For `longest` and `dtype`, see `forward_model`.

    By default, the model computes in float32, as the other program does.
    """
    definition = forward_model(
        *(model.architecture, Execution(), model.heads), mesh=mesh, longest=longest, dtype=dtype
    )
    layout = jax.tree.map(lambda leaf: leaf.sharding, abstract_params(definition, mesh))
    params = jax.device_put(model.params, layout)
    loaded = LoadedParams(
        model.step or 0, model.architecture, model.heads, definition, params, mesh
    )
    return InferenceModel(name, model.tokenizer, model.architecture, model.heads, loaded)


def to_device(params: Params) -> None:
    """Replaces NumPy arrays with JAX arrays one by one, because Orbax and XLA copy NumPy arrays."""
    for name, value in params.items():
        if isinstance(value, dict):
            to_device(value)
        else:
            params[name] = jax.device_put(value, jax.devices("cpu")[0])
