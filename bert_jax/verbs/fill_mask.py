"""`bert-jax fill-mask`: the most probable words for each [MASK]."""

from collections.abc import Sequence

from rich.console import Console

from bert_jax.inference.fill_mask import Filled
from bert_jax.loaded_model import load


def fill_mask(
    run_dir: str,
    texts: str | Sequence[str],
    *,
    top_k: int = 5,
    checkpoint: str = "auto",
    ema: bool = False,
    console: Console | None = None,
) -> list[Filled]:
    """Returns the most probable pieces for every [MASK] of every text.

    To keep the model for further texts, use `bert_jax.load`.

    Args:
        run_dir: run directory with an MLM head, or another source that `load` accepts.
        texts: texts with at least one [MASK] each, or a single text.
        top_k: number of candidates per mask.
        checkpoint: `last`, `best`, a step, or `auto`. `auto` is the best checkpoint of a
            fine-tuned run, and the last checkpoint of any other run.
        ema: use the moving average of the parameters (`train.ema`).
        console: console for the result. Default: no output.

    Raises:
        UserError: the run does not exist, a text has no [MASK], or a text has more pieces than the
            model has positions.
    """
    model = load(run_dir, checkpoint=checkpoint, ema=ema)
    filled = model.fill_mask([texts] if isinstance(texts, str) else texts, top_k=top_k)
    if console is not None:
        for text, masks in filled:
            console.print(text, style="bold", markup=False, soft_wrap=True)
            for candidates in masks:
                shown = "  ".join(f"{piece} {chance:.1%}" for piece, chance in candidates)
                console.print(f"  {shown}", markup=False, highlight=False, soft_wrap=True)
    return filled
