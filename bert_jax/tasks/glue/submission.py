"""The files that gluebenchmark.com takes."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_bytes
from bert_jax.tasks.family import Record
from bert_jax.tasks.glue.files import TASKS

ZIP: Final = "submission.zip"
HIGHEST: Final = 5.0  # similarity; 0 is the lowest

# By task and split, in the order of the leaderboard.
FILES: Final = {
    ("cola", "test"): "CoLA.tsv",
    ("sst2", "test"): "SST-2.tsv",
    ("mrpc", "test"): "MRPC.tsv",
    ("stsb", "test"): "STS-B.tsv",
    ("qqp", "test"): "QQP.tsv",
    ("mnli", "test_matched"): "MNLI-m.tsv",
    ("mnli", "test_mismatched"): "MNLI-mm.tsv",
    ("qnli", "test"): "QNLI.tsv",
    ("rte", "test"): "RTE.tsv",
    ("wnli", "test"): "WNLI.tsv",
    ("mnli", "diagnostic"): "AX.tsv",
}
# An entry's date, so that the same files make the same archive.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def write_submission(
    task: str, split: str, records: Sequence[Record], directory: Path
) -> list[Path]:
    """Writes one task's file, and the archive of all that lie there.

    ``index<TAB>prediction`` and a line for each example: names for MNLI, QNLI, RTE and AX, a number
    from 0 to 5 for STS-B, 0 or 1 for the others. Once every task has written to the same
    directory, which is made if need be, the archive is what the leaderboard takes.

    Returns the task's file and the archive.

    Raises:
        UserError: the split is no test set, or the place cannot be written to.
    """
    name = FILES.get((task, split))
    if name is None:
        allowed = ", ".join(test for of, test in FILES if of == task)
        raise UserError(f'submission: found split "{split}" of {task}, allowed: {allowed}')
    lines = ["index\tprediction"]
    lines += [f"{record['id']}\t{_spelled(task, record['prediction'])}" for record in records]
    path = directory / name
    write_whole(epath.Path(path), "".join(f"{line}\n" for line in lines).encode())
    archive = directory / ZIP
    write_whole(epath.Path(archive), _archived(directory))
    return [path, archive]


def _spelled(task: str, prediction: str | float) -> str:
    if not isinstance(prediction, str):
        return f"{min(max(prediction, 0.0), HIGHEST):.6f}"
    layout = TASKS[task]
    return prediction if layout.spelled == "name" else str(layout.names.index(prediction))


def _archived(directory: Path) -> bytes:
    """Returns a flat archive of those files of a submission that are there."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in FILES.values():
            if (directory / name).exists():
                entry = zipfile.ZipInfo(name, date_time=_EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, read_bytes(epath.Path(directory / name)))
    return made.getvalue()
