"""ELECTRA's variables in google-research/electra.

The names are the scopes of its `model/modeling.py` and `run_pretraining.py`. The repository has no
file with the sizes of a model, so the shapes of the variables and the rules of
`util/training_utils.py` determine them. A `config.json` of Hugging Face beside the checkpoint, as
transformers 4 needs to convert it, takes precedence.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.encoders.electra.hugging_face import FORMAT as HUGGING_FACE
from bert_jax.encoders.electra.hugging_face import ElectraConfig
from bert_jax.encoders.electra.section import ElectraArchitecture
from bert_jax.encoders.google_format import (
    GLOBAL_STEP,
    MU,
    NU,
    GoogleFormat,
    Shapes,
    renamed,
)
from bert_jax.encoders.hf_format import Rules
from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.model.section import TaskName
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.validation import validate

_GENERATOR: Final = "the generator, which only pretraining uses"
_MOMENTS: Final = "one of Adam's moments, of no use without the generator"
_WORDS: Final = "electra/embeddings/word_embeddings"
_LAYER: Final = re.compile(r"electra/encoder/layer_(\d+)/")
_FFN: Final = "electra/encoder/layer_0/intermediate/dense/kernel"
_HEAD_DIM: Final = 64  # in training_utils.py


def names(task: TaskName | None) -> Rules:
    """Returns google-research/electra's names of the discriminator's variables."""
    del task
    head = [rule for rule in HUGGING_FACE.heads if rule.ours.startswith("replaced_tokens/")]
    return (
        *(renamed(rule, f"electra.{rule.theirs}") for rule in HUGGING_FACE.encoder),
        *(renamed(rule, rule.theirs.replace("dense_prediction", "dense_1")) for rule in head),
    )


def _read(config: epath.Path, shapes: Shapes, pieces: int) -> ElectraArchitecture:
    if config.exists():
        values = {"vocab_size": pieces, **read_json_object(config)}
        return validate(ElectraConfig, values, source=str(config)).architecture
    place = str(config.parent)
    rows, narrow = _matrix(shapes, _WORDS, place)
    hidden, inner = _matrix(shapes, _FFN, place)
    layers = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
    values = {
        "vocab_size": rows,
        "embedding_size": narrow,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": max(layers) + 1,
        "num_attention_heads": max(1, hidden // _HEAD_DIM),
        "max_position_embeddings": _matrix(shapes, _table("position"), place)[0],
        "type_vocab_size": _matrix(shapes, _table("token_type"), place)[0],
        "hidden_act": "gelu_erf",
    }
    return validate(ElectraArchitecture, values, source=place)


def _table(name: str) -> str:
    return f"electra/embeddings/{name}_embeddings"


def _matrix(shapes: Shapes, name: str, place: str) -> tuple[int, int]:
    """Returns the shape of a variable. Raises UserError if it is missing or no matrix."""
    found = shapes.get(name)
    if found is None or len(found) != 2:
        raise UserError(
            "import.electra_sizes",
            "found {name} with shape {found}, expected: a matrix, because its shape determines the "
            "model's sizes",
            place=place,
            name=name,
            found="none" if found is None else list(found),
        )
    return found[0], found[1]


def _write(architecture: ElectraArchitecture) -> Mapping[str, Any]:
    # Ids of special pieces are not read; the tokenizer has them.
    return {
        "model_type": "electra",
        "architectures": ["ElectraForPreTraining"],
        **architecture.model_dump(exclude=set(ElectraConfig.fixed)),
        "embedding_size": architecture.embedding_width,
    }


FORMAT: Final = GoogleFormat(
    repository="google-research/electra",
    checkpoint="electra.ckpt",
    config="config.json",
    recognise=lambda name: name.startswith("electra/"),
    names=names,
    heads={"replaced_tokens": "discriminator_predictions/"},
    tasks={},
    ignored={
        GLOBAL_STEP: "the number of steps, not a parameter",
        "generator/*": _GENERATOR,
        "generator_predictions/*": _GENERATOR,
        "temperature*": _GENERATOR,
        f"*{MU}": _MOMENTS,
        f"*{NU}": _MOMENTS,
    },
    activations={"gelu": "gelu_erf"},
    has_moments=False,
    read=_read,
    write=_write,
    tokenizers=(WordPieceTokenizer,),
    usage="""Copy this directory to `DATA_DIR/models/NAME` of google-research/electra. Then run:

```sh
python run_finetuning.py --data-dir DATA_DIR --model-name NAME --hparams '{"model_size": …}'
```

Give sizes of `config.json` that differ from the named size in `model_hparam_overrides`, and set
`do_lower_case` as in `tokenizer_config.json`. The checkpoint has no generator.""",
)
