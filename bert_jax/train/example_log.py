"""The optional log of the examples of every step: `examples/<process>.jsonl`.

    {"step": 7, "phase": 0, "data": "1f0c…", "share": 0, "shares": 2, "examples": {"0": [31, 4]}}

Each step has one line per process, for the process's share of the batch. `examples` maps each epoch
to dataset indices, in row order. `data` is a hash of the data position's fingerprint; it changes if
the data or their order change.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import jax
from etils import epath

from bert_jax.data.host_share import HostShare
from bert_jax.errors import UserError
from bert_jax.files.line_log import Entry, LineLog, open_log, read_log
from bert_jax.files.read import is_whole
from bert_jax.train.progress import TrainProgress

EXAMPLES: Final = "examples"

_FIELDS: Final = {"step": int, "phase": int, "data": str, "share": int, "shares": int}


class EpochOfData(NamedTuple):
    """One pass over one dataset in one order."""

    phase: int
    data: str  # hash of the fingerprint
    epoch: int


class ExampleLog:
    """Writes this process's log.

    A run that resumes at step N first drops the lines of later steps, also from the logs of
    processes that the job no longer has.
    """

    def __init__(
        self,
        run_dir: epath.Path,
        *,
        resume_step: int,
        share: HostShare,
        enabled: bool,
        say: Callable[[str], None],
    ) -> None:
        """Drops the lines of steps after `resume_step` and opens the log.

        Args:
            run_dir: run directory.
            resume_step: step at which the run resumes.
            share: this process's share of every batch.
            enabled: whether to write lines.
            say: prints a warning if lines are damaged or the file cannot be written.
        """
        self._share, self._enabled = share, enabled
        self._directory, self._say = run_dir / EXAMPLES, say
        self._log: LineLog | None = None
        self.rewind(resume_step)

    def write(self, examples: Mapping[int, list[int]] | None, progress: TrainProgress) -> None:
        """Adds a line for the step of `progress`; does nothing if `examples` is None."""
        if self._log is None or examples is None or progress.position is None:
            return
        fingerprint = json.dumps(progress.position.fingerprint, sort_keys=True)
        data = hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()
        entry: Entry = {"step": progress.step, "phase": progress.phase, "data": data}
        entry |= {"share": self._share.index, "shares": self._share.count}
        self._log.append(entry | {EXAMPLES: examples})

    def rewind(self, step: int) -> None:
        """Drops the lines of all steps after `step`."""
        self.close()
        directory, own, processes = self._directory, jax.process_index(), jax.process_count()
        written = {own} if self._enabled else set()
        for process in _processes(directory) | written:
            if process % processes != own:
                continue
            log: LineLog = open_log(
                directory / f"{process}.jsonl",
                check=is_line,
                keep=lambda line: line["step"] <= step,
                say=self._say,
            )
            if process in written:
                self._log = log
            else:
                log.close()

    def flush(self) -> None:
        """Writes all lines to the file."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """Flushes and closes the log; if that fails, `say` prints a warning."""
        if self._log is not None:
            self._log.close()


def read_example_log(run_dir: epath.PathLike) -> dict[int, dict[EpochOfData, list[int]]]:
    """Returns the examples of each step of a run, from all processes.

    ``read_example_log("runs/base")[7] -> {EpochOfData(0, "1f0c…", 0): [31, 4, 17, 2]}``

    Raises UserError if there is no log, a step or a share is missing, or processes logged different
    examples for a share.
    """
    directory = epath.Path(run_dir) / EXAMPLES
    steps: dict[int, dict[int, Entry]] = {}
    for process in sorted(_processes(directory)):
        for line in read_log(directory / f"{process}.jsonl", is_line):
            shares = steps.setdefault(line["step"], {})
            # Processes that differ only along the tensor axis read the same share.
            if shares.setdefault(line["share"], line) != line:
                raise UserError(
                    "example_log.two_shares",
                    "step {step} has different examples for share {share} in two logs",
                    place=directory,
                    step=line["step"],
                    share=line["share"],
                )
    if not steps:
        raise UserError(
            "example_log.missing",
            "no example log, allowed: a run with example_log: true",
            place=directory,
        )
    for step in range(min(steps), max(steps)):
        if step not in steps:
            raise UserError(
                "example_log.step_missing",
                "step {step} is missing: its line is damaged or lost",
                place=directory,
                step=step,
            )
    return {step: _joined(directory, steps[step]) for step in sorted(steps)}


def times_seen(run_dir: epath.PathLike) -> dict[EpochOfData, Counter[int]]:
    """Returns how often each example was read in each epoch of a run.

    In a complete epoch, every value is 1, even after kills and changes of hosts.
    """
    seen: dict[EpochOfData, Counter[int]] = {}
    for step in read_example_log(run_dir).values():
        for epoch, examples in step.items():
            seen.setdefault(epoch, Counter()).update(examples)
    return seen


def is_line(entry: Entry) -> bool:
    """Returns whether a JSON object is a line of this log."""
    examples = entry.get(EXAMPLES)
    return (
        all(type(entry.get(name)) is kind for name, kind in _FIELDS.items())
        and isinstance(examples, dict)
        and all(is_whole(epoch) and isinstance(found, list) for epoch, found in examples.items())
        and all(type(index) is int for indices in examples.values() for index in indices)
    )


def _joined(directory: epath.Path, shares: Mapping[int, Entry]) -> dict[EpochOfData, list[int]]:
    first = next(iter(shares.values()))
    if len(shares) != first["shares"]:
        raise UserError(
            "example_log.share_missing",
            "step {step} has {found} of {expected} shares",
            place=directory,
            step=first["step"],
            found=len(shares),
            expected=first["shares"],
        )
    joined: dict[EpochOfData, list[int]] = {}
    for _, line in sorted(shares.items()):
        for epoch, indices in line[EXAMPLES].items():
            key = EpochOfData(first["phase"], first["data"], int(epoch))
            joined.setdefault(key, []).extend(indices)
    return joined


def _processes(directory: epath.Path) -> set[int]:
    """Returns the indices of the processes that have a log."""
    if not directory.exists():
        return set()
    stems = {path.name.removesuffix(".jsonl") for path in directory.iterdir()}
    return {int(stem) for stem in stems if is_whole(stem)}
