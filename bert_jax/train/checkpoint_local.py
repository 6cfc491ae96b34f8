"""Checkpoints on each host's own disk, or in its memory: quick to write, and gone with the host.

Orbax's own second tier (`orbax.checkpoint.experimental.emergency`) keeps each host's part on its
disk only where another slice holds a replica of it, and needs a mesh axis that says so; its
multi-tier form needs a service of GKE. Here a host writes the pieces of its own devices, whatever
the mesh, in a thread of its own and waiting for nobody. What all hosts have whole is found out when
a run starts: they say over their own connection what they have, and the newest common one is used.

``<directory>/<hash of the run directory>/process_<i>/<step>/{pieces.npz,saved.json,manifest.json}``
"""

import concurrent.futures
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from bert_jax.errors import UserError, first_line
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import is_whole, read_json_object, shown
from bert_jax.files.seal import SEAL, is_intact, sealed
from bert_jax.task import Params
from bert_jax.train.agreement import from_all_processes, from_first_process
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_trees import refuse_non_finite
from bert_jax.train.manifest import damage, write_manifest
from bert_jax.train.sections import CheckpointSection, LocalCheckpointSection
from bert_jax.train.state import TrainState, named, piece_name

STARTS: Final = "local_checkpoints.json"  # in the run directory
_KEPT_STARTS: Final = 64
_PIECES: Final = "pieces.npz"
_SAVED: Final = "saved.json"
_UNFINISHED: Final = ".tmp"


class _Have(NamedTuple):
    """A checkpoint that a host has whole."""

    step: int
    start: str  # of the run, in which it was saved: another's of the same step is not the same


class LocalCheckpoints:
    """One host's, of one run. All processes open it, look for the newest and restore together."""

    def __init__(
        self,
        section: LocalCheckpointSection,
        run_dir: epath.Path,
        mesh: Mesh,
        *,
        say: Callable[[str], None],
    ) -> None:
        """Opens the directory, and registers this start of the run in the run directory.

        Checkpoints of starts that the run directory does not know belong to a run that lay there
        before, and are deleted. The caller is the run directory's only writer. Checkpoints of
        another layout than this mesh's are not used. `say` gets a line about those of this host
        that are damaged, or were not saved; on process 0 also about what all have in common.
        Raises UserError: the directory cannot be written to.
        """
        self._section, self._say = section, say
        of_run = hashlib.sha256(os.fspath(run_dir).encode()).hexdigest()[:16]
        process = jax.process_index()
        self._path = Path(section.directory) / of_run / f"process_{process}"
        own = [device.id for device in mesh.devices.flat if device.process_index == process]
        self._layout = f"{dict(mesh.shape)} over {jax.process_count()} processes, here {own}"
        starts = from_first_process(lambda: _register(run_dir / STARTS, say))
        self._starts: Sequence[str] = starts
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="local")
        self._saving: concurrent.futures.Future[None] | None = None
        self._verified: dict[int, bool] = {}
        self._told: set[int] = set()  # damaged ones

        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._sweep()
        except OSError as error:
            raise UserError(
                f"train.checkpoint.local.directory: cannot write {self._path} "
                f"({error.strerror or error})"
            ) from error

    def newest(self, *, above: int) -> int | None:
        """Returns the newest step that every host has whole; older ones of another start apart.

        None is of use that is older than `above`, the newest step of the run directory.
        """
        self.wait()
        mine = [have for have in self._listed() if have.step > above and self._whole(have.step)]
        everyone = [[_Have(*have) for have in host] for host in from_all_processes(mine)]
        common = set.intersection(*map(set, everyone))
        if common:
            return max(common).step
        if any(everyone) and jax.process_index() == 0:
            lists = "; ".join(
                f"process {index}: {', '.join(str(have.step) for have in sorted(host)) or 'none'}"
                for index, host in enumerate(everyone)
            )
            self._say(
                f"{self._section.directory}: no checkpoint newer than {above} that every host has "
                f"whole ({lists}); going on without"
            )
        return None

    def save(self, state: TrainState, *, step: int, progress: Mapping[str, Any]) -> None:
        """Copies this host's pieces of the state and starts writing them.

        A failure is said aloud and keeps nobody from training: the run directory has its own.
        """
        self.wait()
        pieces: dict[str, np.ndarray] = {}
        for name, leaf in named(state):
            pieces |= {
                piece_name(name, shard.index, leaf.shape): shard.data
                for shard in leaf.addressable_shards
            }
        held = jax.device_get(pieces)
        if jax.default_backend() == "cpu":  # the next step overwrites what this would be a view of
            held = {name: np.array(piece) for name, piece in held.items()}
        saved = {"start": self._starts[-1], "layout": self._layout, "progress": dict(progress)}
        self._saving = self._thread.submit(self._write, step, held, saved)

    def restore(self, wanted: TrainState, *, step: int) -> TrainState:
        """Reads arrays of a step that `newest` returned; parts of `wanted` may be None.

        Raises UserError: a number is not finite, or a piece is missing.
        """
        with np.load(self._path / str(step) / _PIECES, allow_pickle=False) as pieces:

            def read(path: Any, leaf: Any) -> jax.Array:
                name = jax.tree_util.keystr(path, simple=True, separator="/")

                def piece(index: Any) -> np.ndarray:
                    key = piece_name(name, index, leaf.shape)
                    if key not in pieces:
                        raise UserError(
                            f"{self._path / str(step)}: {key} is missing; allowed: the mesh "
                            f"and the model that it was saved with, or deleting it"
                        )
                    shape = [
                        len(range(*part.indices(size)))
                        for part, size in zip(index, leaf.shape, strict=True)
                    ]
                    return pieces[key].view(leaf.dtype).reshape(shape)

                return jax.make_array_from_callback(leaf.shape, leaf.sharding, piece)

            restored = jax.tree_util.tree_map_with_path(read, wanted)
        refuse_non_finite(restored, where=str(self._path / str(step)))
        return restored

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns the progress saved with a step."""
        return self._saved(step)["progress"]

    def forget_after(self, step: int) -> None:
        """Deletes what is newer than the step that the run goes on from: it will be done again."""
        for have in self._listed():
            if have.step > step:
                self._delete(have.step)

    def wait(self) -> None:
        """Waits until what was saved is whole on disk, or has failed."""
        if self._saving is not None:
            self._saving.result()

    def close(self) -> None:
        """Waits, and ends the thread."""
        self.wait()
        self._thread.shutdown()

    def _write(self, step: int, pieces: Mapping[str, np.ndarray], saved: Mapping[str, Any]) -> None:
        """Writes a checkpoint beside its place, and gives it its name when it is whole."""
        aside = self._path / f"{step}{_UNFINISHED}"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            # As bytes: NumPy's own format does not know bfloat16.
            raw = {name: piece.reshape(-1).view(np.uint8) for name, piece in pieces.items()}
            np.savez(aside / _PIECES, **raw)  # pyright: ignore[reportArgumentType]
            (aside / _SAVED).write_text(json.dumps(saved))
            write_manifest(epath.Path(aside), step=step, score=None)
            self._delete(step)
            aside.rename(self._path / str(step))
            self._verified[step] = True
            for old in sorted(have.step for have in self._listed())[: -self._section.keep]:
                self._delete(old)
        except (OSError, UserError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            self._say(
                f"{self._path}: checkpoint {step} was NOT SAVED ({first_line(error)}); training "
                f"goes on"
            )

    def _listed(self) -> list[_Have]:
        """Returns what lies here of this run and layout; its pieces, which are large, unread."""
        found = []
        for path in self._path.iterdir():
            if not is_whole(path.name) or self._is_damaged(int(path.name), parts=[_SAVED]):
                continue
            saved = self._saved(int(path.name))
            if saved.get("start") in self._starts and saved.get("layout") == self._layout:
                found.append(_Have(int(path.name), saved["start"]))
        return found

    def _whole(self, step: int) -> bool:
        if step not in self._verified:
            self._verified[step] = not self._is_damaged(step, parts=None)
        return self._verified[step]

    def _is_damaged(self, step: int, *, parts: Sequence[str] | None) -> bool:
        """Returns whether files differ from the manifest, and says so once: disks that rot do."""
        reason = damage(epath.Path(self._path / str(step)), step=step, parts=parts)
        if reason is not None and step not in self._told:
            self._told.add(step)
            self._say(f"{self._path}: NOT WHOLE: checkpoint {step}: {reason}; going on without it")
        return reason is not None

    def _saved(self, step: int) -> dict[str, Any]:
        return read_json_object(epath.Path(self._path / str(step) / _SAVED))

    def _sweep(self) -> None:
        """Deletes what was cut off, and what another run under this name has left."""
        known = {str(have.step) for have in self._listed()}
        for path in self._path.iterdir():
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)

    def _delete(self, step: int) -> None:
        self._verified.pop(step, None)
        self._told.discard(step)
        shutil.rmtree(self._path / str(step), ignore_errors=True)


def _register(path: epath.Path, say: Callable[[str], None]) -> list[str]:
    """Adds a start to those that the run directory knows, and returns them, the new one last.

    Local checkpoints of a start that is lost there are lost as well: `say` gets a line.
    """
    held = read_json_object(path) if path.exists() else {"starts": []}
    starts, problem = held.get("starts"), None
    if not isinstance(starts, list):
        starts, problem = [], f"found {shown(', '.join(held))}, allowed: starts"
    elif unknown := held.keys() - {"starts", SEAL}:
        problem = f"found {shown(', '.join(sorted(unknown)))}, allowed: starts, {SEAL}"
    elif SEAL in held and not is_intact(held):
        problem = f"found other values than were written (its {SEAL} differs)"
    if problem is not None:
        say(f"{path}: NOT WHOLE: {problem}; local checkpoints that it does not name are deleted")
    starts = [*map(str, starts), uuid.uuid4().hex][-_KEPT_STARTS:]
    write_whole(path, json.dumps(sealed({"starts": starts})))
    return starts


class TieredCheckpoints(Checkpointer):
    """What `Checkpointer` does, but that a run goes on from a local checkpoint where one is newer.

    Evaluation, export and whoever else opens the run directory see that alone.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        section: CheckpointSection,
        local: LocalCheckpoints,
        **more: Any,
    ) -> None:
        """Opens the run's own as `Checkpointer` does; `local` is the other tier."""
        super().__init__(directory, section, **more)
        self._local, self._chosen = local, -1  # the local step that the run goes on from

    def latest_step(self) -> int | None:
        """Returns the newest step that is whole, on all hosts or in the run directory.

        Raises UserError: there are checkpoints in the run directory, and none is whole anywhere.
        """
        newest = max(self.all_steps(), default=0)
        found = self._local.newest(above=newest)
        if found is None:
            return self._without_local(newest)
        return self._choose(found)

    def _without_local(self, newest: int) -> int | None:
        """Returns the newest whole step where none is local above the newest that is listed.

        That may be damaged: then a local one that is newer than the whole one before it is better.
        """
        failed = whole = None
        try:
            whole = super().latest_step()
        except UserError as error:
            failed = error
        if (whole or 0) < newest and (found := self._local.newest(above=whole or 0)) is not None:
            return self._choose(found)
        if failed is not None:
            raise failed
        self._chosen = -1
        self._local.forget_after(whole or 0)
        return whole

    def _choose(self, step: int) -> int:
        self._chosen = step
        self._local.forget_after(step)
        return step

    def has_optimizer(self, step: int) -> bool:
        """Says whether a checkpoint is more than parameters."""
        return step == self._chosen or super().has_optimizer(step)

    def progress(self, step: int) -> Mapping[str, Any]:
        """Returns a checkpoint's progress as plain JSON."""
        return self._local.progress(step) if step == self._chosen else super().progress(step)

    def restore_params(self, abstract_params: Params, *, step: int) -> Params:
        """Reads the parameters alone."""
        if step != self._chosen:
            return super().restore_params(abstract_params, step=step)
        wanted = TrainState(None, None, abstract_params, (), None)
        return self._local.restore(wanted, step=step).params

    def restore_optimizer(self, abstract: TrainState, *, step: int) -> TrainState:
        """Reads everything but the parameters, which stay as `abstract` has them."""
        if step != self._chosen:
            return super().restore_optimizer(abstract, step=step)
        restored = self._local.restore(abstract._replace(params={}), step=step)
        return restored._replace(params=abstract.params)

    def save_local(self, state: TrainState, *, step: int, progress: Mapping[str, Any]) -> None:
        """Starts saving the state on this host's own disk."""
        self._local.save(state, step=step, progress=progress)

    def __exit__(self, *raised: object) -> None:
        try:
            self._local.close()
        finally:
            super().__exit__(*raised)
