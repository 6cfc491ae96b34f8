"""The request for a queued resource: as Google's client sends it, and as a gcloud command."""

import json
import shlex
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.launch.assignment import attribute, told
from bert_jax.launch.job import Attempt
from bert_jax.launch.requests import NOT_INSTALLED
from bert_jax.parallel.topology import TpuTopology

try:
    from google.cloud import tpu_v2
    from google.protobuf import duration_pb2
except ImportError as error:
    raise UserError(NOT_INSTALLED) from error

SCRIPT: Final = "startup-script"
"""The attribute whose value a Cloud TPU VM runs as root when it starts."""

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_SHOWN_SCRIPT: Final = "(tpu_setup/startup.sh)"


def parent(project: str, zone: str) -> str:
    """Returns the name of a zone's resources."""
    return f"projects/{project}/locations/{zone}"


def place(attempt: Attempt) -> tuple[str, str, TpuTopology]:
    """Returns project, zone and topology. Raises UserError if Cloud TPU cannot make them."""
    project, placement = attempt.job.submit.project, attempt.placement
    topology, zone = placement.topology, placement.zone
    if topology is None:
        raise UserError('submit.on: found "local", allowed with queued resources: topologies')
    if topology.accelerator.runtime_version is None:
        raise UserError(
            f'submit.on: found "{topology.name}", which Cloud TPU offers on GKE alone; allowed: '
            "submit.launcher: gke"
        )
    if project is None or zone is None:
        missing = "project" if project is None else "zone"
        raise UserError(f"submit.{missing}: missing; set it, or give --{missing}")
    return project, zone, topology


def creation(attempt: Attempt, script: str) -> tpu_v2.CreateQueuedResourceRequest:
    """Returns the request for the machines of an attempt, which run a script when they start.

    Raises UserError if Cloud TPU has no such machines, or a setting is missing.
    """
    project, zone, _ = place(attempt)
    submit = attempt.job.submit
    location = parent(project, zone)
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=location, node=_node(attempt, script))
    if attempt.placement.slices == 1:
        spec.node_id = attempt.resource
    else:
        spec.multislice_params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
            node_count=attempt.placement.slices, node_id_prefix=attempt.resource
        )
    wanted = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
    if submit.provisioning == "spot":
        wanted.spot = tpu_v2.QueuedResource.Spot()
    elif submit.provisioning == "reservation":
        wanted.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        wanted.reservation_name = _reservation(submit.reservation, location)
    if (hours := submit.limits.wait_hours) is not None:
        wanted.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(
            valid_until_duration=duration_pb2.Duration(seconds=round(hours * 3600))
        )
    return tpu_v2.CreateQueuedResourceRequest(
        parent=location, queued_resource_id=attempt.resource, queued_resource=wanted
    )


def _node(attempt: Attempt, script: str) -> tpu_v2.Node:
    project, zone, topology = place(attempt)
    submit = attempt.job.submit
    node = tpu_v2.Node(
        accelerator_type=topology.accelerator_type,
        runtime_version=topology.accelerator.runtime_version,
        network_config=tpu_v2.NetworkConfig(
            network=submit.network,
            subnetwork=submit.subnetwork,
            enable_external_ips=submit.external_address,
        ),
        labels=attempt.job.labels,
        metadata={**{attribute(key): text for key, text in told(attempt).items()}, SCRIPT: script},
    )
    if submit.provisioning == "reservation":
        node.scheduling_config = tpu_v2.SchedulingConfig(reserved=True)
    if submit.service_account is not None:
        node.service_account = tpu_v2.ServiceAccount(email=submit.service_account, scope=[_SCOPE])
    if submit.data_disk is not None:
        source = f"projects/{project}/zones/{zone}/disks/{submit.data_disk}"
        # Several machines may read a disk if none of them writes it.
        mode = tpu_v2.AttachedDisk.DiskMode.READ_ONLY
        node.data_disks = [tpu_v2.AttachedDisk(source_disk=source, mode=mode)]
    return node


def _reservation(name: str | None, location: str) -> str:
    if name is None:
        raise UserError("submit.reservation: missing; provisioning: reservation needs its name")
    return name if "/" in name else f"{location}/reservations/{name}"


def as_json(request: tpu_v2.CreateQueuedResourceRequest) -> str:
    """Returns the request as JSON to print, with the name of the script instead of its text."""
    shown = tpu_v2.CreateQueuedResourceRequest(request)
    shown.queued_resource.tpu.node_spec[0].node.metadata[SCRIPT] = _SHOWN_SCRIPT
    text = tpu_v2.CreateQueuedResourceRequest.to_json(
        shown, always_print_fields_with_no_presence=False
    )
    return json.dumps(json.loads(text), indent=2, sort_keys=True)


def as_command(request: tpu_v2.CreateQueuedResourceRequest) -> str:
    """Returns the same request as a gcloud command, which reads the script from a checkout."""
    wanted = request.queued_resource
    spec = wanted.tpu.node_spec[0]
    node = spec.node
    _, project, _, zone = request.parent.split("/")
    words = ["gcloud", "compute", "tpus", "queued-resources", "create"]
    words += [request.queued_resource_id, f"--project={project}", f"--zone={zone}"]
    if spec.node_id:
        words += [f"--node-id={spec.node_id}"]
    else:
        several = spec.multislice_params
        words += [f"--node-count={several.node_count}", f"--node-prefix={several.node_id_prefix}"]
    words += [
        f"--accelerator-type={node.accelerator_type}",
        f"--runtime-version={node.runtime_version}",
    ]
    if "spot" in wanted:
        words += ["--spot"]
    if wanted.reservation_name:
        words += ["--reserved", f"--reservation={wanted.reservation_name}"]
    if "queueing_policy" in wanted:
        wait: Any = wanted.queueing_policy.valid_until_duration  # read as a timedelta
        words += [f"--valid-until-duration={round(wait.total_seconds())}s"]
    network = node.network_config
    words += [f"--network={network.network}"] if network.network else []
    words += [f"--subnetwork={network.subnetwork}"] if network.subnetwork else []
    words += [] if network.enable_external_ips else ["--internal-ips"]
    words += [f"--service-account={node.service_account.email}"] if node.service_account else []
    words += [f"--data-disk=source={disk.source_disk},mode=read-only" for disk in node.data_disks]
    words += [f"--labels={_pairs(dict(node.labels))}"]
    attributes = {key: value for key, value in node.metadata.items() if key != SCRIPT}
    words += [f"--metadata={_pairs(attributes)}"]
    words += [f"--metadata-from-file={SCRIPT}=tpu_setup/startup.sh"]
    return shlex.join(words)


def _pairs(values: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(values.items()))
