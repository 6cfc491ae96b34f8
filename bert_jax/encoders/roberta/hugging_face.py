"""RoBERTa, XLM-R and CamemBERT in Hugging Face's format."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.roberta.section import RobertaArchitecture, check_padding
from bert_jax.errors import SettingError
from bert_jax.text.vocabulary import SpecialIds

_KEYS: Final = {"padding_position": "pad_token_id"}


class RobertaConfig(RobertaArchitecture, hf.HfConfig):
    """The keys that we read from RoBERTa's config.json.

    Hugging Face's `max_position_embeddings` is the number of rows of the position table. It
    includes the rows before the first token's.
    """

    model_config = pydantic.ConfigDict(alias_generator=lambda name: _KEYS.get(name, name))
    architecture_type = RobertaArchitecture
    keys = _KEYS
    ids: ClassVar[Mapping[str, str]] = {"bos_token_id": "cls", "eos_token_id": "sep"}

    type_vocab_size: int = pydantic.Field(default=2, ge=1, le=1 << 10)
    layer_norm_eps: float = pydantic.Field(default=1e-12, gt=0)
    position_embedding_type: Literal["absolute"] = "absolute"
    add_cross_attention: Literal[False] = False

    @pydantic.model_validator(mode="after")
    def _some_positions(self) -> Self:
        if self.max_position_embeddings <= self.first_position:
            found, allowed = self.max_position_embeddings, f"more than {self.first_position}"
            place = "max_position_embeddings"
            raise SettingError.wrong("roberta.positions", found, allowed, place=place)
        return self

    @property
    def architecture(self) -> RobertaArchitecture:
        """The architecture."""
        tokens = self.max_position_embeddings - self.first_position
        return super().architecture.model_copy(update={"max_position_embeddings": tokens})

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`.

        Raises UserError if the tokenizer's padding has another id than the architecture's.
        """
        check_padding(architecture.padding_position, special.pad)
        rows = architecture.first_position + architecture.max_position_embeddings
        return super().written(architecture, special) | {"max_position_embeddings": rows}


FORMAT: Final = hf.HfFormat(
    title="RoBERTa",
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    classes={
        "ForMaskedLM": hf.ClassHeads(mlm=True),
        "ForCausalLM": hf.ClassHeads(mlm=True, causal=True),
        **hf.TASK_CLASSES,
        "ForMultipleChoice": hf.ClassHeads(pooler=True, task="multiple_choice"),
    },
    config=RobertaConfig,
    prefix="roberta.",
    encoder=hf.POST_NORM,
    heads=hf.mlm_head("lm_head.dense", "lm_head.layer_norm", "lm_head"),
    tasks={
        **hf.TASK_NAMES,
        "sequence_classification": hf.classifier("classifier.dense", "classifier.out_proj"),
    },
    tied=hf.tied_decoder("lm_head.decoder"),
    constants=hf.CONSTANTS,
)
