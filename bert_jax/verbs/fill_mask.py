"""`bert-jax fill-mask`: the most probable words for each [MASK]."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from bert_jax.inference.fill_mask import Filled, fill_masks
from bert_jax.runs.directory import open_run


def fill_mask(
    run_dir: str,
    texts: Sequence[str],
    *,
    top_k: int = 5,
    checkpoint: str = "auto",
    console: Console | None = None,
) -> list[Filled]:
    """Returns the most probable pieces for every [MASK] of every text.

    Args:
        run_dir: of `pretrain`, or of `import` with an MLM head.
        texts: each with one [MASK] or more.
        top_k: candidates per mask.
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        console: where the result is shown; None shows nothing.

    Raises:
        UserError: a text without [MASK], or with more pieces than the model has positions; no such
            run.
    """
    filled = fill_masks(open_run(run_dir), texts, top_k=top_k, checkpoint=checkpoint)
    if console is not None:
        for text, masks in filled:
            console.print(text, style="bold", markup=False, soft_wrap=True)
            for candidates in masks:
                shown = "  ".join(f"{piece} {chance:.1%}" for piece, chance in candidates)
                console.print(f"  {shown}", markup=False, highlight=False, soft_wrap=True)
    return filled
