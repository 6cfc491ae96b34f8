"""A run's checkpoint, written in another program's format with a model card."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import jax
from etils import epath

from bert_jax.files.atomic import write_whole
from bert_jax.interop.hf import write_hf
from bert_jax.interop.model_card import model_card
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.stablehlo import USAGE as STABLEHLO_USAGE
from bert_jax.interop.stablehlo import export_stablehlo
from bert_jax.interop.tf_bert import write_tf
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.checkpoints import LoadedParams, load_moments, load_params
from bert_jax.runs.directory import TOKENIZER, Run, describe
from bert_jax.runs.evaluation import read_evaluation

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
    in words.

    Raises:
        UserError: no such checkpoint, a head that the run lacks, something that the format cannot
            express, a full disk.
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
