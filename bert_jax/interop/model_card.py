"""The README.md of an exported model: what it is, how to load it, where it comes from."""

import json
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.files.read import read_json_object, read_text
from bert_jax.runs.directory import CONFIG, PROVENANCE, Run

FRONT_MATTER: Final = "---\nlibrary_name: transformers\ntags: [bert, bert-jax]\n---\n"


def model_card(
    run: Run,
    *,
    title: str,
    usage: str,
    heads: str,
    step: int,
    evaluation: Mapping[str, Any] | None,
) -> str:
    """Returns a model card in Markdown; configuration and provenance are the run's own files.

    `usage` says in Markdown how to load it, `heads` in words what is on the encoder.
    """
    sizes = run.architecture.model_dump()
    provenance = read_json_object(run.directory / PROVENANCE)
    parts = [
        FRONT_MATTER,
        f"# {title}\n",
        f"BERT with {heads}, exported by bert-jax from step {step} of the run.\n",
        f"## Use\n\n{usage}\n",
        f"## Architecture\n\n{_table(sizes)}\n",
    ]
    if evaluation is not None:
        scores = {name: f"{value:.6g}" for name, value in evaluation["scores"].items()}
        parts.append(
            f"## Evaluation\n\nStep {evaluation['step']}, {evaluation['examples']} held-out "
            f"examples of `{evaluation['dataset']}`.\n\n{_table(scores)}\n"
        )
    # The configuration of an import that was not trained here holds defaults that nobody used.
    if run.has("train") or run.is_fine_tuned:
        config = read_text(run.directory / CONFIG).strip()
        parts.append(f"## Training\n\n```yaml\n{config}\n```\n")
    shown = json.dumps(provenance, indent=2, ensure_ascii=False)
    parts.append(f"## Provenance\n\n```json\n{shown}\n```\n")
    return "\n".join(parts)


def _table(values: Mapping[str, object]) -> str:
    rows = "\n".join(f"| {key} | {value} |" for key, value in values.items())
    return f"| | |\n|---|---|\n{rows}"
