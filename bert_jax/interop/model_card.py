"""The README.md of an exported model: what it is, how to load it, where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bert_jax.model.config import Architecture


def model_card(
    *,
    title: str,
    usage: str,
    architecture: Architecture,
    heads: str,
    step: int,
    config: str,
    provenance: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
) -> str:
    """Returns a model card in Markdown.

    Args:
        title: the run's name.
        usage: how to load it, as Markdown.
        architecture: sizes.
        heads: what stands on the encoder, in words.
        step: of the checkpoint.
        config: the run's whole configuration, YAML.
        provenance: of the run: datasets, tokenizer, versions, what it started from.
        evaluation: the run's last evaluation.
    """
    sizes = "\n".join(f"| {key} | {value} |" for key, value in architecture.model_dump().items())
    parts = [
        "---\nlibrary_name: transformers\ntags: [bert, bert-jax]\n---\n",
        f"# {title}\n",
        f"BERT with {heads}, exported by bert-jax from step {step} of the run.\n",
        f"## Use\n\n{usage}\n",
        f"## Architecture\n\n| | |\n|---|---|\n{sizes}\n",
    ]
    if evaluation is not None:
        scores = "\n".join(
            f"| {name} | {value:.6g} |" for name, value in evaluation["scores"].items()
        )
        parts.append(
            f"## Evaluation\n\nStep {evaluation['step']}, {evaluation['examples']} held-out "
            f"examples of `{evaluation['dataset']}`.\n\n| | |\n|---|---|\n{scores}\n"
        )
    parts.append(f"## Training\n\n```yaml\n{config.strip()}\n```\n")
    parts.append(
        f"## Provenance\n\n```json\n{json.dumps(provenance, indent=2, ensure_ascii=False)}\n```\n"
    )
    return "\n".join(parts)
