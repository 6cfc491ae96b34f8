"""BERT's variables in google-research/bert.

The names are the scopes of its `modeling.py`, `run_pretraining.py`, `run_classifier.py`,
`run_squad.py` and `optimization.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.encoders.bert.hugging_face import FORMAT as HUGGING_FACE
from bert_jax.encoders.bert.section import BertArchitecture, BertSection
from bert_jax.encoders.google_format import (
    ACTIVATIONS,
    GLOBAL_STEP,
    OUTPUT_BIAS,
    SCOPES,
    TASKS,
    GoogleFormat,
    Shapes,
    output,
    renamed,
    require_config,
)
from bert_jax.encoders.hf_format import NameRule, Rules
from bert_jax.files.read import read_json_object
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import TaskName
from bert_jax.text.wordpiece import WordPieceTokenizer


def names(task: TaskName | None) -> Rules:
    """Returns google-research/bert's names, including the names for a fine-tuned head."""
    transform = [rule for rule in HUGGING_FACE.heads if rule.ours.startswith(("mlm/t", "mlm/n"))]
    return (
        *(renamed(rule, f"bert.{rule.theirs}") for rule in HUGGING_FACE.encoder),
        *(renamed(rule, rule.theirs) for rule in transform),
        NameRule("mlm/bias", SCOPES["mlm"] + OUTPUT_BIAS),
        *output("next_sentence/classifier", SCOPES["next_sentence"]),
        *(() if task is None else output("task", TASKS[task])),
    )


def _read(config: epath.Path, shapes: Shapes, pieces: int) -> EncoderArchitecture:
    del shapes
    rows = read_json_object(require_config(config)).get("vocab_size")
    return BertSection(bert_config=str(config)).resolve(
        vocab_size=rows if isinstance(rows, int) and rows > pieces else pieces
    )


def _write(architecture: BertArchitecture) -> Mapping[str, Any]:
    return architecture.model_dump(exclude={*HUGGING_FACE.config.fixed, "layer_norm_eps"})


FORMAT: Final = GoogleFormat(
    repository="google-research/bert",
    checkpoint="bert_model.ckpt",
    config="bert_config.json",
    recognise=lambda name: True,  # the other encoders are recognised first
    names=names,
    heads=SCOPES,
    tasks=TASKS,
    ignored={
        GLOBAL_STEP: "the number of steps, not a parameter",
        # The variables of LAMB in mlcommons/training, `lamb_optimizer_v1.py`.
        **dict.fromkeys(("*/LAMB", "*/LAMB_1"), "a moment of LAMB, which is not imported"),
        **dict.fromkeys(("beta1_power", "beta2_power"), "a bias correction, not a parameter"),
    },
    activations=ACTIVATIONS,
    has_moments=True,
    read=_read,
    write=_write,
    tokenizers=(WordPieceTokenizer,),
    usage="""```sh
python run_classifier.py --init_checkpoint=bert_model.ckpt --bert_config_file=bert_config.json \\
  --vocab_file=vocab.txt …
```

Set `--do_lower_case` as in `tokenizer_config.json`.""",
)
