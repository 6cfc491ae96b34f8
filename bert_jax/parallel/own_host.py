"""Hosts of one job that work alone: no process waits for another, and no array crosses hosts."""

import glob
import os
from typing import Final

from jax.sharding import Mesh

from bert_jax.data.host_share import ONE_HOST, HostShare
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.processes import place_in_job
from bert_jax.parallel.section import DistributedSection, MeshSection

# Arrangement of a host's chips, by their number.
_CHIPS: Final = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}


def open_own_mesh(section: MeshSection, *, one_device: bool = False) -> tuple[Mesh, HostShare]:
    """Opens the devices of this host, or one of them, and returns its share of a job's work.

    Raises UserError if the environment does not say which host this is, if the section divides a
    model over devices, or as `open_mesh`.
    """
    for name in ("fsdp", "tensor"):
        if (found := getattr(section, name)) != 1:
            raise UserError(
                "mesh.whole_model",
                f"found {found}, allowed: 1, because every device has the whole model",
                place=f"mesh.{name}",
            )
    share = ONE_HOST
    if section.distributed.enabled:
        share = place_in_job(section.distributed)
        if share.count > 1:
            _leave_slice()
    alone = {"distributed": DistributedSection(), "data": -1, "slices": 1, "copies": None}
    return open_mesh(section.model_copy(update=alone), one_device=one_device), share


def _leave_slice() -> None:
    """Makes libtpu open the chips of this host alone. By default, it waits for the whole slice.

    Does nothing on a host without TPU chips. Source of the variables: pytorch/xla issue 7714.
    """
    chips = len(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
    if not chips:
        return
    if chips not in _CHIPS:
        raise UserError.wrong("score.chips", f"{chips} TPU chips", "1, 4 or 8", place="this host")
    os.environ.update(
        {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            **dict.fromkeys(("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS"), "1,1,1"),
            **dict.fromkeys(
                ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"), _CHIPS[chips]
            ),
        }
    )
