"""ALBERT's variables in google-research/albert.

The names are the scopes of its `modeling.py`, `run_pretraining.py`, `classifier_utils.py` and
`squad_utils.py`. Version 1 of the modules on TensorFlow Hub has other names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from etils import epath

from bert_jax.encoders.albert.hugging_face import AlbertConfig
from bert_jax.encoders.albert.section import AlbertArchitecture
from bert_jax.encoders.google_format import (
    ACTIVATIONS,
    GLOBAL_STEP,
    OUTPUT_BIAS,
    SCOPES,
    TASKS,
    GoogleFormat,
    Limit,
    Shapes,
    output,
    rename_activation,
    require_config,
)
from bert_jax.encoders.hf_format import LAYERS, NameRule, Rules
from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.model.section import TaskName
from bert_jax.text.library_tokenizer import LibraryTokenizer
from bert_jax.text.sentence_piece import SentencePieceTokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.validation import validate

_HF_ACTIVATIONS: Final = {"gelu": "gelu_new", "relu": "relu"}
_EMBEDDINGS: Final = "bert/embeddings/"
_LAYER: Final = "bert/encoder/transformer/group_{layer}/inner_group_0/"
_MLM: Final = SCOPES["mlm"]

# Settings of an architecture that albert_config.json does not have.
_NOT_WRITTEN: Final = {*AlbertConfig.fixed, "layer_norm_eps", "classifier_dropout_prob"}


def _dense(ours: str, scope: str) -> Rules:
    return (
        NameRule(f"{ours}/kernel", f"{scope}/kernel", matrix=True),
        NameRule(f"{ours}/bias", f"{scope}/bias"),
    )


def _norm(ours: str, scope: str) -> Rules:
    return NameRule(f"{ours}/scale", f"{scope}/gamma"), NameRule(f"{ours}/bias", f"{scope}/beta")


def names(task: TaskName | None) -> Rules:
    """Returns google-research/albert's names, including the names for a fine-tuned head."""
    tables = {"word": "word", "position": "position", "type": "token_type"}
    return (
        *(
            NameRule(f"encoder/embeddings/{ours}", f"{_EMBEDDINGS}{theirs}_embeddings", matrix=True)
            for ours, theirs in tables.items()
        ),
        *_norm("encoder/embeddings/norm", f"{_EMBEDDINGS}LayerNorm"),
        *_dense("encoder/embeddings/projection", "bert/encoder/embedding_hidden_mapping_in"),
        *_dense(f"{LAYERS}attention/query", f"{_LAYER}attention_1/self/query"),
        *_dense(f"{LAYERS}attention/key", f"{_LAYER}attention_1/self/key"),
        *_dense(f"{LAYERS}attention/value", f"{_LAYER}attention_1/self/value"),
        *_dense(f"{LAYERS}attention/output", f"{_LAYER}attention_1/output/dense"),
        *_norm(f"{LAYERS}attention_norm", f"{_LAYER}LayerNorm"),
        *_dense(f"{LAYERS}intermediate", f"{_LAYER}ffn_1/intermediate/dense"),
        *_dense(f"{LAYERS}output", f"{_LAYER}ffn_1/intermediate/output/dense"),
        *_norm(f"{LAYERS}output_norm", f"{_LAYER}LayerNorm_1"),
        *_dense("pooler/dense", "bert/pooler/dense"),
        *_dense("mlm/transform", f"{_MLM}transform/dense"),
        *_norm("mlm/norm", f"{_MLM}transform/LayerNorm"),
        NameRule("mlm/bias", _MLM + OUTPUT_BIAS),
        *output("next_sentence/classifier", SCOPES["next_sentence"]),
        *(() if task is None else output("task", TASKS[task])),
    )


def _read(config: epath.Path, shapes: Shapes, pieces: int) -> AlbertArchitecture:
    del shapes
    values = read_json_object(require_config(config))
    # AlbertConfig has the same keys, and checks inner_group_num.
    values["hidden_act"] = rename_activation(values, _HF_ACTIVATIONS, place=str(config))
    found = validate(AlbertConfig, {"vocab_size": pieces, **values}, source=str(config))
    if found.vocab_size < pieces:
        raise UserError(
            "model.vocab_size_of_file",
            "vocab_size is {found}, but the tokenizer has {pieces} pieces",
            place=str(config),
            found=found.vocab_size,
            pieces=pieces,
        )
    return found.architecture


def _write(architecture: AlbertArchitecture) -> Mapping[str, Any]:
    return {
        **architecture.model_dump(exclude=_NOT_WRITTEN),
        "embedding_size": architecture.embedding_width,
        "inner_group_num": 1,
    }


def _limits(architecture: AlbertArchitecture) -> Sequence[Limit]:
    # modeling.py projects only embeddings of another width; we always project.
    width, hidden = architecture.embedding_width, architecture.hidden_size
    narrow = [f"another width than hidden_size = {hidden}"] if width == hidden else [width]
    return (Limit("embedding_size", width, narrow),)


FORMAT: Final = GoogleFormat(
    repository="google-research/albert",
    checkpoint="model.ckpt-best",
    config="albert_config.json",
    recognise=lambda name: "/inner_group_" in name,
    names=names,
    heads=SCOPES,
    tasks=TASKS,
    ignored={GLOBAL_STEP: "the number of steps, not a parameter"},
    activations=ACTIVATIONS,
    has_moments=True,
    read=_read,
    write=_write,
    tokenizers=(SentencePieceTokenizer, WordPieceTokenizer, LibraryTokenizer),
    usage="""```sh
python -m albert.run_classifier --init_checkpoint=model.ckpt-best \\
  --albert_config_file=albert_config.json --spm_model_file=spiece.model …
```

Set `--do_lower_case` as in `tokenizer_config.json`. If there is a `vocab.txt`, give `--vocab_file`
and no SentencePiece model. A `tokenizer.json` is a copy of the model that the run was imported
with: give that file.""",
    more_limits=_limits,
)
