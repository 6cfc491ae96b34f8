"""NeoBERT in the format of its authors' classes on the Hugging Face Hub.

Source: ``src/neobert/model`` of github.com/chandar-lab/NeoBERT, and chandar-lab/NeoBERT on the Hub.
transformers has no such classes: it loads the authors' code from the Hub.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.neobert.section import NeoBertArchitecture
from bert_jax.errors import SettingError
from bert_jax.text.vocabulary import SpecialIds

_LAYER: Final = "transformer_encoder.{layer}."
_KEYS: Final = {"max_position_embeddings": "max_length", "layer_norm_eps": "norm_eps"}
_GATED: Final = "SwiGLU"
_ROUNDED: Final = 8
# transformers then finds the authors' code on the Hub, since an export contains no code.
_CODE: Final = {
    auto: f"chandar-lab/NeoBERT--model.{name}"
    for auto, name in {
        "AutoConfig": "NeoBERTConfig",
        "AutoModel": "NeoBERT",
        "AutoModelForMaskedLM": "NeoBERTLMHead",
        "AutoModelForSequenceClassification": "NeoBERTForSequenceClassification",
    }.items()
}


class NeoBertConfig(NeoBertArchitecture, hf.HfConfig):
    """The keys that we read from NeoBERT's config.json."""

    model_config = pydantic.ConfigDict(alias_generator=lambda name: _KEYS.get(name, name))
    architecture_type = NeoBertArchitecture
    keys = _KEYS
    fixed: ClassVar[Mapping[str, object]] = {
        **hf.HfConfig.fixed,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
    }
    added = frozenset({"embedding_dropout", "attention_dropout", "mlp_dropout"})

    intermediate_size: int = pydantic.Field(default=3072, ge=1, le=1 << 19)
    max_position_embeddings: int = pydantic.Field(default=1024, ge=1, le=1 << 20)
    layer_norm_eps: float = pydantic.Field(default=1e-6, gt=0)
    rms_norm: Literal[True] = True
    rope: Literal[True] = True
    ngpt: Literal[False] = False
    dropout: float = pydantic.Field(default=0.0, ge=0, le=0)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _gated(cls, values: Any) -> Any:
        """Raises SettingError if the FFN is not SwiGLU."""
        found = str(values.get("hidden_act", _GATED))
        if found.lower() != _GATED.lower():
            raise SettingError.wrong("import.activation", found, _GATED, place="hidden_act")
        return {key: value for key, value in values.items() if key != "hidden_act"}

    @property
    def architecture(self) -> NeoBertArchitecture:
        """The architecture. The FFN has 2/3 of `intermediate_size`, rounded up to whole eights."""
        width = -(-int(2 * self.intermediate_size / 3) // _ROUNDED) * _ROUNDED
        values = self.model_dump(include=set(NeoBertArchitecture.model_fields))
        return NeoBertArchitecture(**{**values, "intermediate_size": width})

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`."""
        return super().written(architecture, special) | {
            "auto_map": _CODE,
            "hidden_act": _GATED,
            "intermediate_size": architecture.intermediate_size * 3 // 2,
        }


def _heads_in_turn(architecture: NeoBertArchitecture) -> np.ndarray:
    """Returns the places of the rows of our queries, keys and values in ``qkv``.

    ``qkv`` has queries, keys and values of one head after another. Two neighbouring columns of a
    query or key rotate together; ours are half a head apart.
    """
    columns = architecture.head_dim
    pairs = np.arange(columns).reshape(-1, 2).T.reshape(-1)
    heads = 3 * columns * np.arange(architecture.num_attention_heads)[:, None]
    parts = pairs, columns + pairs, 2 * columns + np.arange(columns)
    return np.concatenate([(heads + part).reshape(-1) for part in parts])


def _joined(part: str) -> hf.NameRule:
    (rule,) = hf.dense(f"{hf.LAYERS}{part}", f"{_LAYER}qkv", bias=False)
    return rule._replace(order=_heads_in_turn)


FORMAT: Final = hf.HfFormat(
    title="NeoBERT",
    model_types={"neobert": "NeoBERT"},
    classes={
        "LMHead": hf.ClassHeads(mlm=True),
        "ForSequenceClassification": hf.ClassHeads(task="sequence_classification"),
        "": hf.ClassHeads(),
    },
    config=NeoBertConfig,
    prefix="model.",
    encoder=(
        *hf.embedding("encoder/word", "encoder"),
        *hf.norm("encoder/attention_norms", f"{_LAYER}attention_norm", bias=False),
        *map(_joined, ("query", "key", "value")),
        *hf.dense(f"{hf.LAYERS}output", f"{_LAYER}wo", bias=False),
        *hf.norm(f"{hf.LAYERS}ffn_norm", f"{_LAYER}ffn_norm", bias=False),
        *hf.dense(f"{hf.LAYERS}gate", f"{_LAYER}ffn.w12", bias=False),
        *hf.dense(f"{hf.LAYERS}up", f"{_LAYER}ffn.w12", bias=False),
        *hf.dense(f"{hf.LAYERS}down", f"{_LAYER}ffn.w3", bias=False),
        *hf.norm("encoder/last_norm", "layer_norm", bias=False),
    ),
    heads=(*hf.embedding("mlm/word", "decoder"), hf.NameRule("mlm/bias", "decoder.bias")),
    tasks={"sequence_classification": hf.classifier("dense", "classifier")},
    tied={},
    constants={"*freqs_cis": "a constant, not a parameter"},
)
