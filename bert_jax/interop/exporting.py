"""A run's checkpoint, written in another program's format with a model card."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import jax
from etils import epath

from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_text
from bert_jax.interop.hf import write_hf
from bert_jax.interop.mapping import Pretrained
from bert_jax.interop.stablehlo import USAGE as STABLEHLO_USAGE
from bert_jax.interop.stablehlo import export_stablehlo
from bert_jax.interop.tf_bert import write_tf
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.checkpoints import LoadedParams, load_moments, load_params
from bert_jax.runs.directory import CONFIG, TOKENIZER, Run, read_run_provenance
from bert_jax.runs.evaluation import read_evaluation
from bert_jax.runs.settings import describe

Format = Literal["hf", "tf", "stablehlo"]

HF_USAGE: Final = """```python
from transformers import AutoTokenizer, {kind}

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {kind}.from_pretrained("{name}")
```"""

TF_USAGE: Final = """```sh
python run_classifier.py --init_checkpoint=bert_model.ckpt --bert_config_file=bert_config.json \\
  --vocab_file=vocab.txt …
```

`tokenizer_config.json` says what `--do_lower_case` must be."""

FRONT_MATTER: Final = "---\nlibrary_name: transformers\ntags: [bert, bert-jax]\n---\n"


class ExportOptions(NamedTuple):
    """What to write."""

    to: Format = "hf"
    kind: str | None = None  # a class of Hugging Face's; None: the fullest that the heads allow
    outputs: Sequence[str] | None = None  # of a StableHLO program; None: its defaults


def write_export(
    directory: Path, run: Run, options: ExportOptions, *, title: str, checkpoint: str
) -> str:
    """Writes a run's checkpoint and its model card.

    The directory exists and is empty; for `checkpoint` see `load_params`. Returns step and heads,
    in words. Raises UserError: no such checkpoint, a head that the run lacks, something that the
    format cannot express, a full disk.
    """
    loaded = load_params(run, checkpoint=checkpoint, mesh=open_mesh(one_device=True))
    usage, heads = _write(directory, run, loaded, options, title)
    evaluation = read_evaluation(run, step=loaded.step)
    card = model_card(
        run,
        title=title,
        usage=usage,
        heads=heads,
        step=loaded.step,
        evaluation=None if evaluation is None else evaluation._asdict(),
    )
    write_whole(epath.Path(directory / "README.md"), card.encode())
    return f"step {loaded.step}, {heads}"


def _write(
    directory: Path, run: Run, loaded: LoadedParams, options: ExportOptions, title: str
) -> tuple[str, str]:
    """Returns how to load what it wrote, and its heads in words."""
    params, heads = jax.device_get(loaded.params), describe(run.heads)
    if options.to == "stablehlo":
        export_stablehlo(
            directory,
            architecture=run.architecture,
            execution=run.model.execution,
            heads=run.heads,
            params=params,
            outputs=options.outputs,
        )
        run.tokenizer.save(directory / TOKENIZER)
        return STABLEHLO_USAGE, heads
    model = Pretrained(run.architecture, run.heads, params, run.tokenizer)
    if options.to == "tf":
        moments = load_moments(run, loaded)
        write_tf(directory, model._replace(moments=moments, step=loaded.step))
        return TF_USAGE, heads
    kind = write_hf(directory, model, kind=options.kind)
    return HF_USAGE.format(kind=kind, name=title), f"{heads} ({kind})"


def model_card(
    run: Run, *, title: str, usage: str, heads: str, step: int, evaluation: Mapping[str, Any] | None
) -> str:
    """Returns a model card in Markdown; configuration and provenance are the run's own files.

    `usage` says in Markdown how to load it, `heads` in words what is on the encoder.
    """
    sizes = run.architecture.model_dump()
    provenance = read_run_provenance(run.directory)
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
