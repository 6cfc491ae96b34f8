"""`bert_jax.load`: a run or another program's checkpoint → a model in memory."""

from __future__ import annotations

from etils import epath

from bert_jax.loaded_model import LoadedModel, load_model
from bert_jax.parallel.section import MeshSection


def load(
    source: epath.PathLike, *, checkpoint: str = "auto", mesh: MeshSection | None = None
) -> LoadedModel:
    """Returns a model in memory, to encode texts, fill masks and predict with.

    ``bert_jax.load("runs/base").fill_mask("the [MASK] module")``

    Args:
        source: a run directory of `pretrain`, `finetune` or `import`; or the directory of a Hugging
            Face or google-research/bert checkpoint, which is read as it is; or the name of a model
            on a hub, ``google-bert/bert-base-uncased``, with ``@`` a revision.
        checkpoint: of a run: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else
            the last.
        mesh: devices to use; None for all.

    Raises:
        UserError: nothing that can be read, or no such checkpoint.
    """
    return load_model(source, checkpoint=checkpoint, mesh=mesh)
