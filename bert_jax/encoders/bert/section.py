"""Settings of BERT. Needs no JAX."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal, Self

import pydantic
from etils import epath

from bert_jax.errors import SettingError, UserError, commas
from bert_jax.files.read import read_json_object
from bert_jax.model.architecture import Activation, PostNormArchitecture
from bert_jax.model.section import ArchitectureChanges, ModelSection, SizeSource
from bert_jax.section import PathText
from bert_jax.validation import validate

Size = Literal["tiny", "mini", "small", "medium", "base", "large"]

ACTIVATIONS: Final[Mapping[str, Activation]] = {"gelu": "gelu_tanh", "relu": "relu"}
"""Our names of the activations of google-research/bert, whose "gelu" is the tanh approximation."""


class BertArchitecture(PostNormArchitecture):
    """Sizes and settings that determine the parameters and the function of BERT."""

    kind = "bert"
    pooled_heads = frozenset({"sequence_classification", "multiple_choice"})


class BertArchitectureChanges(ArchitectureChanges, of=BertArchitecture):
    """Settings of `BertArchitecture`, all optional."""


class BertSection(ModelSection):
    """BERT: sizes from a name or a `bert_config.json`, other settings, heads and execution.

    ``model: {size: tiny, architecture: {hidden_dropout_prob: 0.0}, execution: {dtype: float32}}``
    """

    architecture_type = BertArchitecture
    # The released models (arXiv 1810.04805 and 1908.08962).
    named_sizes: ClassVar = {
        "tiny": (2, 128, 2, 512),
        "mini": (4, 256, 4, 1024),
        "small": (4, 512, 8, 2048),
        "medium": (8, 512, 8, 2048),
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
    }

    kind: Literal["bert"] = "bert"
    """The encoder: `bert`, the default."""
    size: Size | None = None
    """A named size. Layers × hidden size × heads: tiny 2 × 128 × 2, mini 4 × 256 × 4, small 4 × 512
    × 8, medium 8 × 512 × 8, base 12 × 768 × 12, large 24 × 1024 × 16."""
    bert_config: PathText | None = None
    """Path of a `bert_config.json` of google-research/bert, or a `config.json` of Hugging Face."""
    architecture: BertArchitectureChanges = BertArchitectureChanges()
    """The whole architecture, or changes to `size` or `bert_config`, such as dropout and positions.
    Layers, widths and heads must come from one source."""

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.size is not None and self.bert_config is not None:
            raise SettingError(
                "model.two_sources", "found with bert_config. Set only one.", place="size"
            )
        return self

    def size_source(self, *, vocab_size: int) -> SizeSource | None:
        """Returns the source of the sizes, see `ModelSection`."""
        if (path := self.bert_config) is None:
            return super().size_source(vocab_size=vocab_size)
        return SizeSource("bert_config", path, _read_bert_config(path, vocab_size=vocab_size))


def _read_bert_config(path: str, *, vocab_size: int) -> dict[str, object]:
    """Reads a `bert_config.json` and replaces "gelu" by `gelu_tanh`."""
    try:
        values = read_json_object(epath.Path(path))
        # Delete unused keys of the multilingual and Chinese models.
        for key in [key for key in values if key.startswith("pooler_") or key == "directionality"]:
            del values[key]
        activation = str(values.get("hidden_act", "gelu"))
        if activation not in ACTIVATIONS:
            found = f'hidden_act "{activation:.60}"'
            raise UserError.wrong("model.activation", found, commas(ACTIVATIONS), place=path)
        values["hidden_act"] = ACTIVATIONS[activation]
        if (found := values.get("vocab_size", vocab_size)) != vocab_size:
            found, allowed = f"vocab_size {found}", f"the tokenizer's {vocab_size} pieces"
            raise UserError.wrong("model.vocab_size_of_file", found, allowed, place=path)
        validate(BertArchitecture, {**values, "vocab_size": vocab_size}, source=path)
    except UserError as error:
        raise error.located("model.bert_config") from error
    return values
