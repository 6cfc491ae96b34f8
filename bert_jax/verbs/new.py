"""`bert-jax new`: a commented configuration to start from."""

import re
from pathlib import Path

from etils import epath

from bert_jax.config import NEW, packaged_configs, read_packaged
from bert_jax.errors import UserError
from bert_jax.files.atomic import output_exists, write_whole


def new(kind: str, path: str | None = None, *, force: bool = False) -> Path:
    """Writes a commented configuration, in which you replace the file names with your own.

    ``bert_jax.new("table") -> Path("table.yaml")``

    Args:
        kind: "table", "glue", "ner", "squad", "embedding", "sparse", "late_interaction" or "rerank"
            for fine-tuning; "laptop", "pretrain", "modernbert" or "adapt" for pretraining; "score"
            to run a model over a corpus.
        path: path of the new file. Default: ``KIND.yaml`` in the working directory.
        force: replace an existing file.

    Raises:
        UserError: the kind is unknown, or the file exists.
    """
    kinds = [name.removeprefix(NEW) for name in packaged_configs() if name.startswith(NEW)]
    if kind not in kinds:
        raise UserError.unknown("new.kind", kind, kinds, place="new")
    target = Path(path or f"{kind}.yaml")
    if target.exists() and not force:
        raise output_exists(target)
    # Not the names of other files, such as configs/pretrain/fast.yaml.
    text = re.sub(rf"(?<![/\w]){kind}\.yaml", target.name, read_packaged(f"{NEW}{kind}"))
    write_whole(epath.Path(target), text.encode())
    return target
