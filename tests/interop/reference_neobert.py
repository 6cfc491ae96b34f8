"""NeoBERT in PyTorch, for comparisons: transformers has no classes of it.

Written from the paper (arXiv 2502.19587) and from the names and layouts of the tensors in the
released checkpoint. `chandar-lab/NeoBERT/model.py` of an export's `auto_map` can be this file.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
)


class NeoBERTConfig(PreTrainedConfig):
    """The settings that the released config.json has."""

    model_type = "neobert"

    def __init__(self, **settings: Any) -> None:
        defaults = {
            "hidden_size": 768,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "norm_eps": 1e-6,
            "vocab_size": 30522,
            "pad_token_id": 0,
            "max_length": 1024,
            "initializer_range": 0.02,
        }
        for name, value in defaults.items():
            setattr(self, name, settings.pop(name, value))
        super().__init__(**settings)

    def _get_generation_parameters(self) -> dict[str, Any]:
        return {}  # transformers 5 would not save a configuration with `max_length`


class Layer(nn.Module):
    """One layer: attention with rotary positions, and SwiGLU."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        inner = (int(2 * config.intermediate_size / 3) + 7) // 8 * 8
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.ffn = nn.ModuleDict(
            {
                "w12": nn.Linear(width, 2 * inner, bias=False),
                "w3": nn.Linear(inner, width, bias=False),
            }
        )
        self.attention_norm = nn.RMSNorm(width, config.norm_eps)
        self.ffn_norm = nn.RMSNorm(width, config.norm_eps)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        joined = self.qkv(self.attention_norm(x)).view(batch, length, self.heads, -1)
        q, k, v = joined.transpose(1, 2).chunk(3, dim=-1)
        q, k = turned(q, turn), turned(k, turn)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.wo(attended.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.ffn["w12"](self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn["w3"](functional.silu(gate) * up)


def turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotates each pair of neighbouring columns as a complex number."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)


class NeoBERTPreTrainedModel(PreTrainedModel):
    config_class = NeoBERTConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)


class NeoBERT(NeoBERTPreTrainedModel):
    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        layers = range(config.num_hidden_layers)
        self.transformer_encoder = nn.ModuleList([Layer(config) for _ in layers])
        self.layer_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool = False,
        **_: Any,
    ) -> BaseModelOutput:
        columns = self.config.hidden_size // self.config.num_attention_heads
        frequencies = 10_000.0 ** -(torch.arange(0, columns, 2) / columns)
        angles = torch.outer(torch.arange(input_ids.shape[1]).float(), frequencies)
        turn = torch.polar(torch.ones_like(angles), angles)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = [self.encoder(input_ids)]
        for layer in self.transformer_encoder:
            states.append(layer(states[-1], mask[:, None, None].bool(), turn))
        last = self.layer_norm(states[-1])
        shown = (*states[:-1], last) if output_hidden_states else None
        return BaseModelOutput(last_hidden_state=last, hidden_states=shown)


class NeoBERTLMHead(NeoBERTPreTrainedModel):
    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERT(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **inputs: Any
    ) -> MaskedLMOutput:
        found = self.model(input_ids, **inputs)
        logits = self.decoder(found.last_hidden_state)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=found.hidden_states)


class NeoBERTForSequenceClassification(NeoBERTPreTrainedModel):
    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERT(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **inputs: Any
    ) -> SequenceClassifierOutput:
        found = self.model(input_ids, **inputs)
        logits = self.classifier(torch.tanh(self.dense(found.last_hidden_state[:, 0])))
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=found.hidden_states)
