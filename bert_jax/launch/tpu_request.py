"""The request for a queued resource of Cloud TPU: as a message, as JSON and as a command."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from google.cloud import tpu_v2
from google.protobuf import duration_pb2

from bert_jax.errors import UserError
from bert_jax.launch import launcher
from bert_jax.launch.assignment import metadata
from bert_jax.launch.job import Attempt

SCRIPT: Final = "startup-script"
"""The metadata attribute with the script that a Cloud TPU VM runs as root at its start."""

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def creation(attempt: Attempt, location: str, script: str) -> tpu_v2.CreateQueuedResourceRequest:
    """Returns the request for an attempt's machines, which run `script` at their start.

    Raises UserError if Cloud TPU has no such machines or a setting is missing.
    """
    submit, tpu = attempt.job.submit, tpu_v2.QueuedResource.Tpu
    spec = tpu.NodeSpec(parent=location, node=_node(attempt, location, script))
    if attempt.placement.slices == 1:
        spec.node_id = attempt.resource
    else:
        spec.multislice_params = tpu.NodeSpec.MultisliceParams(
            node_count=attempt.placement.slices, node_id_prefix=attempt.resource
        )
    wanted = tpu_v2.QueuedResource(tpu=tpu(node_spec=[spec]))
    if submit.provisioning == "spot":
        wanted.spot = tpu_v2.QueuedResource.Spot()
    elif submit.provisioning == "reservation":
        name = launcher.reservation_of(submit)
        wanted.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        wanted.reservation_name = name if "/" in name else f"{location}/reservations/{name}"
    if (hours := submit.limits.wait_hours) is not None:
        wanted.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(
            valid_until_duration=duration_pb2.Duration(seconds=round(hours * 3600))
        )
    return tpu_v2.CreateQueuedResourceRequest(
        parent=location, queued_resource_id=attempt.resource, queued_resource=wanted
    )


def _node(attempt: Attempt, location: str, script: str) -> tpu_v2.Node:
    topology, submit = attempt.placement.topology, attempt.job.submit
    if topology is None or topology.accelerator.runtime_version is None:
        found = f'"{attempt.placement.on}" needs GKE. Use submit.launcher: gke.'
        raise UserError("submit.on_queued", found, place="submit.on")
    node = tpu_v2.Node(
        accelerator_type=topology.accelerator_type,
        runtime_version=topology.accelerator.runtime_version,
        network_config=tpu_v2.NetworkConfig(
            network=submit.network,
            subnetwork=submit.subnetwork,
            enable_external_ips=submit.external_address,
        ),
        labels=attempt.job.labels,
        metadata={**metadata(attempt), SCRIPT: script},
    )
    if submit.provisioning == "reservation":
        node.scheduling_config = tpu_v2.SchedulingConfig(reserved=True)
    if submit.service_account is not None:
        node.service_account = tpu_v2.ServiceAccount(email=submit.service_account, scope=[_SCOPE])
    if submit.data_disk is not None:
        source = f"{location.replace('/locations/', '/zones/')}/disks/{submit.data_disk}"
        # Several machines may share a disk only read-only.
        mode = tpu_v2.AttachedDisk.DiskMode.READ_ONLY
        node.data_disks = [tpu_v2.AttachedDisk(source_disk=source, mode=mode)]
    return node


def as_json(request: tpu_v2.CreateQueuedResourceRequest) -> str:
    """Returns the request as JSON to print, with the startup script's path in place of its text."""
    shown = tpu_v2.CreateQueuedResourceRequest(request)
    shown.queued_resource.tpu.node_spec[0].node.metadata[SCRIPT] = "(tpu_setup/startup.sh)"
    text = tpu_v2.CreateQueuedResourceRequest.to_json(
        shown, always_print_fields_with_no_presence=False
    )
    return json.dumps(json.loads(text), indent=2, sort_keys=True)


def as_command(request: tpu_v2.CreateQueuedResourceRequest) -> str:
    """Returns the request as a gcloud command, to run in a checkout of this repository."""
    wanted = request.queued_resource
    spec = wanted.tpu.node_spec[0]
    node, several, network = spec.node, spec.multislice_params, spec.node.network_config
    _, project, _, zone = request.parent.split("/")
    wait: Any = wanted.queueing_policy.valid_until_duration  # a timedelta
    flags = {
        "project": project,
        "zone": zone,
        "node-id": spec.node_id,
        "node-count": several.node_count,
        "node-prefix": several.node_id_prefix,
        "accelerator-type": node.accelerator_type,
        "runtime-version": node.runtime_version,
        "spot": "spot" in wanted,
        "reserved": bool(wanted.reservation_name),
        "reservation": wanted.reservation_name,
        "valid-until-duration": f"{round(wait.total_seconds())}s" if wait else "",
        "network": network.network,
        "subnetwork": network.subnetwork,
        "internal-ips": not network.enable_external_ips,
        "service-account": node.service_account.email,
        "data-disk": [f"source={disk.source_disk},mode=read-only" for disk in node.data_disks],
        "labels": _pairs(node.labels),
        "metadata": _pairs({key: text for key, text in node.metadata.items() if key != SCRIPT}),
        "metadata-from-file": f"{SCRIPT}=tpu_setup/startup.sh",
    }
    alpha = ["alpha"] if wanted.reservation_name else []  # only alpha has --reservation
    words = ["gcloud", *alpha, "compute", "tpus", "queued-resources", "create"]
    words.append(request.queued_resource_id)
    for flag, value in flags.items():
        for item in value if isinstance(value, list) else [value]:
            words += [f"--{flag}" if item is True else f"--{flag}={item}"] if item else []
    return shlex.join(words)


def _pairs(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(values.items()))
