"""`bert-jax export`: a run's checkpoint → Hugging Face, the 2018 TensorFlow format, StableHLO."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import jax
from etils import epath
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.files.small import new_directory, write_whole
from bert_jax.interop.hf import write_hf
from bert_jax.interop.model_card import model_card
from bert_jax.interop.stablehlo import USAGE as STABLEHLO_USAGE
from bert_jax.interop.stablehlo import export_stablehlo
from bert_jax.interop.tf_bert import write_tf
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.directory import CONFIG, PROVENANCE, TOKENIZER, Run, describe, open_run
from bert_jax.runs.parameters import LoadedParams, load_moments, load_params
from bert_jax.tasks.training.evaluation import EVALUATION

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


class _Choice(NamedTuple):
    """What was asked for beside the format."""

    name: str
    kind: str | None
    outputs: Sequence[str] | None


def export(
    run_dir: str,
    output: str,
    *,
    to: Format = "hf",
    kind: str | None = None,
    outputs: Sequence[str] | None = None,
    checkpoint: str = "auto",
    force: bool = False,
    console: Console | None = None,
) -> Path:
    """Writes a run's checkpoint in another program's format, with a model card.

    Args:
        run_dir: of `pretrain`, `finetune` or `import`.
        output: a local directory that is not there yet.
        to: the format.
        kind: the class of Hugging Face's; None for the fullest that the run's heads allow.
        outputs: of a StableHLO program; None for what `stablehlo.default_outputs` says.
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        force: replace `output`; the old one stays until the new one is whole.
        console: where the result is shown.

    Returns:
        The directory.

    Raises:
        UserError: no such run or checkpoint, a head that it lacks, `output` is there.
    """
    for option, value, only in (("--as", kind, "hf"), ("--outputs", outputs, "stablehlo")):
        if value is not None and to != only:
            raise UserError(f"{option}: found it with --to {to}, allowed: with --to {only}")
    if "://" in output:
        raise UserError(f"export: found {output}, allowed: a local path")
    run = open_run(run_dir)
    target = Path(output)
    with new_directory(target, force=force) as aside:
        loaded = load_params(run, checkpoint=checkpoint, mesh=open_mesh(one_device=True))
        usage, heads = _write(to, aside, run, loaded, _Choice(target.name, kind, outputs))
        card = model_card(
            title=target.name,
            usage=usage,
            architecture=run.architecture,
            heads=heads,
            step=loaded.step,
            config=(run.directory / CONFIG).read_text(),
            provenance=json.loads((run.directory / PROVENANCE).read_text()),
            evaluation=_evaluation(run),
        )
        write_whole(epath.Path(aside / "README.md"), card.encode())
    if console is not None:
        console.print(f"{output}: step {loaded.step}, {heads}", markup=False, soft_wrap=True)
    return target


def _write(
    to: Format, directory: Path, run: Run, loaded: LoadedParams, choice: _Choice
) -> tuple[str, str]:
    """Returns how to load what it wrote, and its heads in words."""
    params = jax.device_get(loaded.params)
    if to == "stablehlo":
        export_stablehlo(
            directory,
            architecture=run.architecture,
            execution=run.model.execution,
            heads=run.heads,
            params=params,
            outputs=choice.outputs,
        )
        run.tokenizer.save(directory / TOKENIZER)
        return STABLEHLO_USAGE, describe(run.heads)
    if to == "tf":
        write_tf(
            directory,
            architecture=run.architecture,
            heads=run.heads,
            params=params,
            tokenizer=run.tokenizer,
            moments=load_moments(run, loaded),
            global_step=loaded.step,
        )
        return TF_USAGE, describe(run.heads)
    written = write_hf(
        directory,
        architecture=run.architecture,
        heads=run.heads,
        params=params,
        tokenizer=run.tokenizer,
        kind=choice.kind,
    )
    return HF_USAGE.format(kind=written, name=choice.name), f"{describe(run.heads)} ({written})"


def _evaluation(run: Run) -> dict[str, Any] | None:
    path = run.directory / EVALUATION
    return json.loads(path.read_text()) if path.exists() else None
