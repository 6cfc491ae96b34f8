"""ELECTRA in Hugging Face's format."""

from typing import Any, Final, Literal

import pydantic

from bert_jax.encoders import hf_format as hf
from bert_jax.encoders.electra.section import ElectraArchitecture
from bert_jax.text.vocabulary import SpecialIds


class ElectraConfig(ElectraArchitecture, hf.HfConfig):
    """The keys that we read from ELECTRA's config.json."""

    architecture_type = ElectraArchitecture

    embedding_size: int | None = pydantic.Field(default=128, ge=1, le=1 << 16)
    position_embedding_type: Literal["absolute"] = "absolute"
    add_cross_attention: Literal[False] = False
    summary_type: Literal["first"] = "first"
    summary_use_proj: Literal[True] = True
    summary_activation: Literal["gelu"] = "gelu"

    @classmethod
    def written(cls, architecture: Any, special: SpecialIds) -> dict[str, Any]:
        """Returns the keys and values, see `HfConfig`."""
        width = {"embedding_size": architecture.embedding_width}
        return super().written(architecture, special) | width


FORMAT: Final = hf.HfFormat(
    title="ELECTRA",
    model_types={"electra": "Electra"},
    classes={
        "ForPreTraining": hf.ClassHeads(replaced_tokens=True),
        "ForMaskedLM": hf.ClassHeads(mlm=True),  # the generator's class
        **hf.TASK_CLASSES,
    },
    config=ElectraConfig,
    prefix="electra.",
    encoder=(*hf.POST_NORM, *hf.dense("encoder/embeddings/projection", "embeddings_project")),
    heads=(
        *hf.mlm_head(
            "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"
        ),
        *hf.dense("replaced_tokens/transform", "discriminator_predictions.dense"),
        *hf.dense("replaced_tokens/classifier", "discriminator_predictions.dense_prediction"),
    ),
    tasks={
        **hf.TASK_NAMES,
        "sequence_classification": hf.classifier("classifier.dense", "classifier.out_proj"),
        "multiple_choice": hf.classifier("sequence_summary.summary", "classifier"),
    },
    tied={"generator_lm_head.weight": "encoder/embeddings/word"},
    constants=hf.CONSTANTS,
)
