"""`bert-jax export`: a run's checkpoint → Hugging Face, google-research/bert, StableHLO."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory
from bert_jax.files.remote import is_remote
from bert_jax.interop.exporting import Format, write_export
from bert_jax.interop.sources import push
from bert_jax.narration import doing
from bert_jax.runs.directory import open_run
from bert_jax.runs.lock import hold_output


def export(
    run_dir: str,
    output: str,
    *,
    to: Format = "hf",
    kind: str | None = None,
    outputs: Sequence[str] | None = None,
    checkpoint: str = "auto",
    force: bool = False,
    push_to: str | None = None,
    private: bool = True,
    console: Console | None = None,
) -> Path:
    """Writes a run's checkpoint in another program's format, with a model card.

    Args:
        run_dir: of `pretrain`, `finetune` or `import`.
        output: a new local directory.
        to: the format.
        kind: a class of Hugging Face's; None for the fullest that the run's heads allow.
        outputs: of a StableHLO program; None for `stablehlo.default_outputs`.
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        force: replace `output`; the old directory stays until the new one is whole.
        push_to: a model on a hub, ``owner/name``, to upload the directory to.
        private: whether a model that the upload makes is private.
        console: where the result is shown.

    Returns:
        The directory.

    Raises:
        UserError: no such run or checkpoint, a head that it lacks, or `output` exists.
    """
    for option, value, only in (("--as", kind, "hf"), ("--outputs", outputs, "stablehlo")):
        if value is not None and to != only:
            raise UserError(f"{option}: found with --to {to}, allowed: with --to {only}")
    if is_remote(output):
        raise UserError(f"export: found {output}, allowed: a local path")

    def show(line: str) -> None:
        if console is not None:
            console.print(line, markup=False, soft_wrap=True)

    run, target = open_run(run_dir), Path(output)
    with (
        hold_output(target),
        new_directory(target, force=force) as aside,
        doing(f"writing {output}"),
    ):
        written = write_export(
            *(aside, run),
            to=to,
            kind=kind,
            outputs=outputs,
            title=target.name,
            checkpoint=checkpoint,
        )
    show(f"{output}: {written}")
    if push_to is not None:
        address = push(target, push_to, private=private, message=f"bert-jax: {written}")
        show(f"{push_to}: {address}")
    return target
