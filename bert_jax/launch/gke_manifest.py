"""The JobSet manifest of an attempt: one Job per slice, one pod per host."""

from typing import Any, Final

from bert_jax.errors import UserError, commas
from bert_jax.launch.assignment import host_variables, variables
from bert_jax.launch.job import Attempt
from bert_jax.launch.launcher import reservation_of
from bert_jax.launch.run_process import NEVER_MET
from bert_jax.parallel.accelerators import ACCELERATORS, Accelerator
from bert_jax.parallel.topology import TpuTopology

GROUP: Final = "jobset.x-k8s.io"
VERSION: Final = "v1alpha2"
PLURAL: Final = "jobsets"

DIRECTORY: Final = "bert-jax/job"  # the annotation with the job's directory
QUEUE: Final = "kueue.x-k8s.io/queue-name"  # Kueue suspends a JobSet with this label at creation

REPLICATED: Final = "slice"  # the name of the replicated Job: pods are NAME-slice-SLICE-WORKER-…

GRACE_SECONDS: Final = 600
"""Seconds from SIGTERM to SIGKILL, in which the run saves. Spot machines get only 25 s."""

_WORK: Final = "/mnt/bert-jax"
_CHIPS: Final = "google.com/tpu"
# A slice of several hosts has its own node pool, which no other Job may share.
_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_POOL: Final = "cloud.google.com/gke-nodepool"
_JOB_INDEX: Final = "metadata.labels['jobset.sigs.k8s.io/job-index']"


def jobset(attempt: Attempt) -> dict[str, Any]:
    """Returns the JobSet manifest of an attempt.

    If a run fails permanently (exit 1 or 2) or its hosts never meet, the JobSet fails at once. If a
    pod ends for another reason, such as a preemption, JobSet restarts all pods. Raises UserError if
    GKE has no such machines, or a setting is missing.
    """
    topology, submit = attempt.placement.topology, attempt.job.submit
    if topology is None or topology.accelerator.gke_slice is None:
        allowed = commas([name for name, chip in ACCELERATORS.items() if chip.gke_slice])
        found = f'"{attempt.placement.on}" with submit.launcher: gke'
        raise UserError.wrong("submit.on_gke", found, allowed, place="submit.on")
    if submit.image is None:
        remedy = "missing, but GKE needs a container. Build it with tpu_setup/Dockerfile."
        raise UserError("submit.image_missing", remedy, place="submit.image")
    hosts = topology.hosts(gke=True)
    exclusive = {_EXCLUSIVE: _POOL} if hosts > 1 else {}
    queue = {QUEUE: submit.queue} if submit.queue is not None else {}
    codes = {"operator": "In", "values": [1, 2, NEVER_MET]}
    permanent = {"onExitCodes": codes, "action": "FailJob"}
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [permanent]},
        "template": {
            "metadata": {"labels": attempt.job.labels},
            "spec": _pod(attempt, topology, submit.image),
        },
    }
    slices = attempt.placement.slices
    replicated = {"name": REPLICATED, "replicas": slices, "template": {"spec": job}}
    mistake = {"name": "mistake", "action": "FailJobSet"}
    mistake |= {"onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "JobSet",
        "metadata": {
            "name": attempt.resource,
            "namespace": submit.namespace,
            "labels": {**attempt.job.labels, **queue},
            "annotations": {DIRECTORY: str(attempt.job.directory), **exclusive},
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": submit.limits.retries, "rules": [mistake]},
            "replicatedJobs": [replicated],
        },
    }


def _pod(attempt: Attempt, topology: TpuTopology, image: str) -> dict[str, Any]:
    submit = attempt.job.submit
    chips = topology.chips // topology.hosts(gke=True)  # chips per host
    tolerations = [{"key": _CHIPS, "operator": "Exists", "effect": "NoSchedule"}]
    if submit.provisioning == "spot":
        spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"}
        tolerations.append({**spot, "effect": "NoSchedule"})
    container = {
        "name": "bert-jax",
        "image": image,
        "env": _environment(attempt),
        "resources": {"limits": {_CHIPS: str(chips)}},
        # The TPU driver locks more memory than the default limit (RLIMIT_MEMLOCK). The limit does
        # not bind privileged containers. xpk and axlearn do the same.
        "securityContext": {"privileged": True},
        "volumeMounts": [
            # Loader processes pass batches through /dev/shm. The default of 64 MiB is too small.
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "work", "mountPath": _WORK},
        ],
    }
    return {
        "restartPolicy": "Never",  # JobSet restarts all pods together
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **_network(submit.service_account),
        "nodeSelector": _node_selector(attempt, topology),
        "tolerations": tolerations,
        "containers": [container],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {"name": "work", **_disk(submit.data_disk_gb, topology.accelerator)},
        ],
    }


def _network(account: str | None) -> dict[str, Any]:
    """Returns the fields of a pod for its network and identity.

    The host network is faster between slices. Its pods always act as the service account of the
    node, never as a Kubernetes account (Workload Identity). JobSet's headless service gives every
    pod a name in both networks; GKE adds the names as TPU_WORKER_HOSTNAMES.
    """
    if account is not None:
        return {"serviceAccountName": account}
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def _node_selector(attempt: Attempt, topology: TpuTopology) -> dict[str, str]:
    accelerator, submit = topology.accelerator, attempt.job.submit
    single = accelerator.gke_device if topology.hosts(gke=True) == 1 else None
    selector = {
        "cloud.google.com/gke-tpu-accelerator": single or str(accelerator.gke_slice),
        "cloud.google.com/gke-tpu-topology": topology.name.partition(":")[2],
    }
    if attempt.placement.zone is not None:
        selector["topology.kubernetes.io/zone"] = attempt.placement.zone
    if submit.provisioning == "spot":
        selector["cloud.google.com/gke-spot"] = "true"
    if submit.provisioning == "reservation":
        selector["cloud.google.com/reservation-name"] = reservation_of(submit)
        selector["cloud.google.com/reservation-affinity"] = "specific"
    return selector


def _environment(attempt: Attempt) -> list[dict[str, Any]]:
    """Returns a container's variables. GKE adds TPU_WORKER_ID, the index within the slice."""
    values = host_variables(attempt) | variables(home=_WORK)
    slices, name = attempt.placement.slices, attempt.resource
    index = []
    if slices > 1:
        values["MEGASCALE_NUM_SLICES"] = str(slices)
        values["MEGASCALE_COORDINATOR_ADDRESS"] = f"{name}-{REPLICATED}-0-0.{name}"
        field = {"fieldRef": {"fieldPath": _JOB_INDEX}}
        index = [{"name": "MEGASCALE_SLICE_ID", "valueFrom": field}]
    # Double each dollar: Kubernetes expands $(NAME) in a value.
    return [
        *({"name": key, "value": value.replace("$", "$$")} for key, value in values.items()),
        *index,
    ]


def _disk(size_gb: int | None, accelerator: Accelerator) -> dict[str, Any]:
    """Returns a volume for software, datasets and caches. It is deleted with its pod."""
    if size_gb is None:
        return {"emptyDir": {}}
    size = {"requests": {"storage": f"{size_gb}Gi"}}
    # GKE's own classes: dynamic-rwo (GKE 1.35.3) makes the type that the machine takes.
    name = "dynamic-rwo" if accelerator.hyperdisk else "standard-rwo"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": size, "storageClassName": name}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
