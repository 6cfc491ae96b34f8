"""`bert-jax export`: a run's checkpoint → Hugging Face, google-research, StableHLO."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import jax
from etils import epath
from rich.console import Console

from bert_jax.encoders.bert.google import USAGE as TENSORFLOW_USAGE
from bert_jax.errors import UserError, all_of
from bert_jax.files.atomic import new_directory, write_whole
from bert_jax.files.read import read_text
from bert_jax.files.remote import require_local
from bert_jax.interop.difference import largest_difference
from bert_jax.interop.hf_checkpoint import write_hf
from bert_jax.interop.hf_config import classes_for, format_of
from bert_jax.interop.importing import TEXT_HEADS, read_checkpoint, to_device
from bert_jax.interop.sources import push, push_name
from bert_jax.interop.stablehlo import PROGRAM, SIGNATURE, export_stablehlo
from bert_jax.interop.stablehlo import USAGE as STABLEHLO_USAGE
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.interop.tf_checkpoint import read_tf, write_tf
from bert_jax.model.section import PRETRAINED_HEADS
from bert_jax.narration import doing
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.evaluation import Evaluation, read_evaluation
from bert_jax.runs.lock import hold_output
from bert_jax.runs.open_checkpoints import load_moments, load_params
from bert_jax.runs.run_directory import CONFIG, TOKENIZER, Run, open_run, read_run_provenance
from bert_jax.runs.settings import describe

_FRONT_MATTER: Final = "---\ntags: [{kind}, bert-jax]\n---\n"
_HF_FRONT_MATTER: Final = "---\nlibrary_name: transformers\ntags: [{kind}, bert-jax]\n---\n"

Format = Literal["hf", "tf", "stablehlo"]
CARD: Final = "README.md"
EXPORTED: Final = "exported by bert-jax"  # in every model card
# Patterns of the names in an export of any format.
_NAMES: Final = (
    *(CARD, "config.json", "*_config.json", "config_*.json", "model*.safetensors*"),
    *("vocab.*", "merges.txt", "*.model", "tokenizer*", "*_map.json", "added_tokens.json"),
    *("modules.json", "[0-9]_*", "checkpoint", "*.index", "*.data-*", PROGRAM, SIGNATURE),
)

HF_USAGE: Final = """```python
from transformers import AutoTokenizer, {kind}

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {kind}.from_pretrained("{name}")
```"""


def export(
    run_dir: str,
    output: str,
    *,
    to: Format = "hf",
    kind: str | None = None,
    outputs: Sequence[str] | None = None,
    checkpoint: str = "auto",
    ema: bool = False,
    force: bool = False,
    push_to: str | None = None,
    private: bool = True,
    console: Console | None = None,
) -> Path:
    """Writes a run's checkpoint in another program's format, with a model card.

    Args:
        run_dir: run directory of `pretrain`, `finetune` or `import`.
        output: a new local directory.
        to: the format. ``hf`` adds sentence-transformers' files to a model of sentence embeddings.
        kind: Hugging Face class. Default: the task's class for a fine-tuned model, otherwise the
            class with the most of its heads. A line names the heads that are left out.
        outputs: outputs of a StableHLO program. Default: `stablehlo.default_outputs`.
        checkpoint: `last`, `best`, a step, or `auto`. `auto` is the best checkpoint of a
            fine-tuned run, and the last checkpoint of any other run.
        ema: export the moving average of the parameters (`train.ema`), without moments.
        force: replace `output`. The old directory stays until the new directory is complete.
        push_to: upload the directory to this model on a hub, ``owner/name``.
        private: whether a newly created model is private.
        console: console for the result.

    Returns:
        The directory.

    Raises:
        UserError: the run or the checkpoint does not exist, a head is missing, or `output` exists.
    """
    for option, value, only in (("--as", kind, "hf"), ("--outputs", outputs, "stablehlo")):
        if value is not None and to != only:
            raise UserError.wrong(
                "export.option", f"with --to {to}", f"with --to {only}", place=option
            )
    require_local(output, verb="export")
    if push_to is not None:
        push_name(push_to)  # before the output is written

    def show(line: str) -> None:
        if console is not None:
            console.print(line, markup=False, soft_wrap=True)

    run, target = open_run(run_dir), Path(output)
    with (
        hold_output(target),
        new_directory(target, force=force, ours=_names) as aside,
        doing(f"writing {output}"),
    ):
        written = _write(
            *(aside, run),
            to=to,
            kind=kind,
            outputs=outputs,
            title=target.name,
            checkpoint=checkpoint,
            ema=ema,
        )
    show(f"{output}: {written.text}")
    if written.left_out is not None:
        show(f"{output}: without {written.left_out}")
    if written.difference is not None:
        show(f"{output}: read back, its outputs differ by at most {written.difference:.1g}")
    if push_to is not None:
        address = push(target, push_to, private=private, message=f"bert-jax: {written.text}")
        show(f"{push_to}: {address}")
    return target


def _names(directory: Path) -> Sequence[str]:
    card = directory / CARD
    return _NAMES if card.is_file() and EXPORTED in read_text(epath.Path(card)) else ()


class _Written(NamedTuple):
    text: str  # step and heads
    left_out: str | None  # heads of the model that are not written, and the class that lacks them
    difference: float | None  # see `largest_difference`; some formats have no reader


def _refuse_unknown_to(to: Format, run: Run) -> None:
    """Raises UserError if a format cannot have a setting of the architecture or of the heads."""
    if to == "stablehlo":
        return
    format = format_of(run.architecture.kind)
    for name, allowed in format.config.fixed.items():
        if (found := getattr(run.architecture, name, allowed)) != allowed:
            raise UserError(
                "export.setting",
                f"found {found}, but --to {to} has only models with {allowed}. Use --to stablehlo.",
                place=f"model.architecture.{name}",
            )
    fits = to == "hf" and classes_for(format, run.heads, model_type=_model_type(run))
    if run.heads.causal and not fits:
        raise UserError(
            "export.causal",
            f"--to {to} has no {describe(run.heads)} of {run.architecture.kind}. Use stablehlo.",
            place="export",
        )


class _Files(NamedTuple):
    """The written files of a format."""

    usage: str  # for the model card: how to load the model
    model: Pretrained | None  # as read back, or None if the format has no reader
    kind: str | None = None  # Hugging Face class
    front_matter: str = _FRONT_MATTER  # of the model card


def _write(
    directory: Path,
    run: Run,
    *,
    to: Format,
    kind: str | None,
    outputs: Sequence[str] | None,
    title: str,
    checkpoint: str,
    ema: bool,
) -> _Written:
    """Writes a checkpoint and its model card."""
    loaded = load_params(run, checkpoint=checkpoint, ema=ema, mesh=open_mesh(one_device=True))
    run = run.of_phase(loaded.architecture, causal=loaded.heads.causal)
    _refuse_unknown_to(to, run)
    model = Pretrained(
        run.architecture,
        run.heads,
        jax.device_get(loaded.params),
        run.tokenizer,
        step=loaded.step,
        model_type=_model_type(run),
    )
    if to == "stablehlo":
        files = _write_stablehlo(directory, model, run, outputs=outputs)
    elif to == "tf":
        model = model._replace(moments=None if ema else load_moments(run, loaded))
        write_tf(directory, model)
        again = read_tf(directory, tokenizer=model.tokenizer, with_moments=False)
        files = _Files(TENSORFLOW_USAGE, again)
    else:
        files = _write_hugging_face(directory, model, kind=kind, title=title)
    of_model = run.heads.of_pretraining
    kept = of_model if files.model is None else files.model.heads.of_pretraining
    lost = [head for head in PRETRAINED_HEADS if head in of_model - kept]
    heads = describe(run.heads.model_copy(update=dict.fromkeys(lost, False)))
    heads += f" ({files.kind})" if files.kind else ""
    written = f"step {loaded.step}" + (", moving average of the parameters" if ema else "")
    encoder = format_of(run.architecture.kind).title
    card = _model_card(
        run,
        title=title,
        text=f"{encoder} with {heads}, {EXPORTED} from {written} of the run.",
        usage=files.usage,
        evaluation=read_evaluation(run, step=loaded.step, ema=ema),
        front_matter=files.front_matter,
    )
    write_whole(epath.Path(directory / CARD), card.encode())
    difference = None
    if files.model is not None:
        to_device(files.model.params)
        difference = largest_difference(model, files.model)
    names = all_of([PRETRAINED_HEADS[head] for head in lost])
    left_out = f"{names}, which {files.kind or 'this format'} lacks" if lost else None
    return _Written(f"{written}, {heads}", left_out, difference)


def _write_stablehlo(
    directory: Path, model: Pretrained, run: Run, *, outputs: Sequence[str] | None
) -> _Files:
    export_stablehlo(
        directory,
        architecture=run.architecture,
        execution=run.model.execution,
        heads=run.heads,
        params=model.params,
        outputs=outputs,
    )
    run.tokenizer.save(directory / TOKENIZER)
    return _Files(f"{STABLEHLO_USAGE}\n\nThe tokenizer is in `{TOKENIZER}/`.", None)


def _write_hugging_face(
    directory: Path, model: Pretrained, *, kind: str | None, title: str
) -> _Files:
    """Writes the files of Hugging Face, and of sentence-transformers for a text head."""
    chosen = write_hf(directory, model, kind=kind)
    usage, front_matter = HF_USAGE.format(kind=chosen, name=title), _HF_FRONT_MATTER
    if model.heads.text_head is not None:
        format = TEXT_HEADS[type(model.heads.text_head)]
        format.write(directory, model)
        usage, front_matter = format.usage.format(name=title), format.front_matter
    return _Files(usage, read_checkpoint(directory), chosen, front_matter)


def _model_type(run: Run) -> str | None:
    """Returns Hugging Face's type of the checkpoint from which the run was imported."""
    origin = read_run_provenance(run.directory).get("imported_from")
    return origin.get("model_type") if isinstance(origin, dict) else None


def _model_card(
    run: Run,
    *,
    title: str,
    text: str,
    usage: str,
    evaluation: Evaluation | None,
    front_matter: str,
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
