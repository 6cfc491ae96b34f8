"""The model card beside an exported checkpoint."""

import json
from collections.abc import Mapping
from typing import Final

from bert_jax.files.read import read_text
from bert_jax.runs.evaluation import Evaluation
from bert_jax.runs.run_directory import CONFIG, Run, read_run_provenance

FRONT_MATTER: Final = "---\ntags: [{kind}, bert-jax]\n---\n"
HF_FRONT_MATTER: Final = "---\nlibrary_name: transformers\ntags: [{kind}, bert-jax]\n---\n"


def model_card(
    run: Run,
    *,
    title: str,
    text: str,
    usage: str,
    evaluation: Evaluation | None,
    front_matter: str = FRONT_MATTER,
) -> str:
    """Returns a model card in Markdown, with the run's configuration and provenance files."""
    parts = [
        front_matter.format(kind=run.architecture.kind),
        f"# {title}\n",
        f"{text}\n",
        f"## Use\n\n{usage}\n",
        f"## Architecture\n\n{_table(run.architecture.model_dump())}\n",
    ]
    if evaluation is not None:
        scores = {name: f"{value:.6g}" for name, value in evaluation.scores.items()}
        parts.append(
            f"## Evaluation\n\nStep {evaluation.step}, {evaluation.examples} held-out "
            f"examples of `{evaluation.dataset}`.\n\n{_table(scores)}\n"
        )
    # Omit the configuration of an untrained import: it has only unused defaults.
    if run.has("train") or run.is_fine_tuned:
        config = read_text(run.directory / CONFIG).strip()
        parts.append(f"## Training\n\n```yaml\n{config}\n```\n")
    shown = json.dumps(read_run_provenance(run.directory), indent=2, ensure_ascii=False)
    parts.append(f"## Provenance\n\n```json\n{shown}\n```\n")
    return "\n".join(parts)


def _table(values: Mapping[str, object]) -> str:
    rows = "\n".join(f"| {key} | {value} |" for key, value in values.items())
    return f"| | |\n|---|---|\n{rows}"
