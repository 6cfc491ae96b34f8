"""Stopping a run whose replicas of the state differ, before anything of it is saved."""

from typing import Any

from bert_jax.errors import RunStopped
from bert_jax.parallel.channel import current_channel
from bert_jax.parallel.replica_checksum import Deviation, find_deviations
from bert_jax.train.pauses import Pause
from bert_jax.train.spec import TrainSpec


class ReplicaCheck:
    """Compares the replicas of the state whenever the devices wait, before anything is saved.

    A hook of the train loop: see `bert_jax.train.pauses`.
    """

    def __init__(self, spec: TrainSpec) -> None:
        self._spec = spec

    def __call__(self, pause: Pause) -> None:
        """Raises RunStopped: some differ; the message names the devices and their processes."""
        if self._spec.intervals.checksum_every is None:
            return
        if found := find_deviations(pause.state, self._spec.mesh):
            last = self._spec.checkpoints.latest_step()
            held = "there is no checkpoint" if last is None else f"checkpoint {last} is untouched"
            raise RunStopped(f"step {pause.step}: {describe(found)}; nothing was saved, {held}")


def describe(found: list[Deviation]) -> str:
    """Returns which devices deviate, and where.

    ``replicas differ: device 5 (process 1, TPU v4) in params/mlm/bias and 3 more``
    """
    outvoted = [each for each in found if each.outvoted]
    named = outvoted or found
    devices = ", ".join(
        f"device {each.device.id} ({_process(each.device)}, {each.device.device_kind})"
        for each in named
    )
    arrays = list(dict.fromkeys(name for each in named for name in each.arrays))
    more = f" and {len(arrays) - 1} more" if len(arrays) > 1 else ""
    doubt = "" if outvoted else "; no majority tells which of them is wrong"
    return f"replicas differ: {devices} in {arrays[0]}{more}{doubt}"


def _process(device: Any) -> str:
    """Returns ``process 1``, with several hosts ``process 1 on host-b``."""
    channel, index = current_channel(), device.process_index
    return f"process {index}" + (f" on {channel.members[index].host}" if channel else "")
