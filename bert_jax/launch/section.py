"""Settings of `bert-jax submit`."""

from typing import Annotated, Literal

import pydantic

from bert_jax.files.host_lock import Lock
from bert_jax.parallel.topology import parse_topology
from bert_jax.section import PathText, Section, Strings, as_tuple

LauncherName = Literal["queued-resources", "gke"]
Provisioning = Literal["on-demand", "spot", "reservation"]


Counts = Annotated[
    tuple[Annotated[int, pydantic.Field(ge=1)], ...],
    pydantic.BeforeValidator(lambda value: (value,) if isinstance(value, int) else as_tuple(value)),
    pydantic.Field(min_length=1),
]
"""A list of whole numbers. In YAML, a single number needs no list."""

RESOURCE_NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"

# Google Cloud's rules for labels and names. All of these characters are safe in a shell.
LabelKey = Annotated[str, pydantic.Field(pattern=r"^[a-z][-_a-z0-9]{0,62}$")]
LabelValue = Annotated[str, pydantic.Field(pattern=r"^[-_a-z0-9]{0,63}$")]
CloudName = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][-._:/@A-Za-z0-9]{0,254}$")]
Zone = Annotated[str, pydantic.Field(pattern=r"^[a-z][-a-z0-9]{0,62}$")]
QueueName = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9]([-.a-z0-9]{0,61}[a-z0-9])?$")]
Zones = Annotated[tuple[Zone, ...], pydantic.BeforeValidator(as_tuple)]
"""A list of zones. In YAML, a single zone needs no list."""


class LimitsSection(Section):
    """Limits of a job. At a limit, the job ends and its machines are deleted.

    Attributes:
        retries: maximum restarts of machines, after preemptions and failures.
        hours: maximum wall time since the first request.
        cost: maximum cost in US dollars, by the price list of `bert-jax plan`.
        wait_hours: maximum wait of one request for capacity (`valid-until`). If no placement has
            capacity in time, the job ends. Default: a single placement waits without limit.
            Several placements wait 15 minutes each, in turn, until one of them has capacity.
    """

    retries: int = pydantic.Field(default=100, ge=0)
    hours: float | None = pydantic.Field(default=None, gt=0)
    cost: float | None = pydantic.Field(default=None, gt=0)
    wait_hours: float | None = pydantic.Field(default=None, gt=0)


class SubmitSection(Section):
    """Where a job runs and what it may cost.

    `on`, `zone` and `slices` may be lists. The job tries their combinations in order until one has
    capacity; `slices` varies fastest.

    Attributes:
        name: the job's name. Default: the last part of the run directory.
        launcher: the service that creates the machines of a topology.
        on: topologies in any spelling (`v5litepod-16`), or `local`.
        hosts: number of processes of `on: local`.
        lock: `on: local`: hosts install this lock into an environment of their own, as Cloud TPU
            hosts do. Default: they run the submitter's Python.
        slices: number of slices of each topology.
        bucket: bucket for the job's wheel, configuration, logs and state: ``gs://…``. For
            `on: local`: a directory.
        project: Google Cloud project. Default: from the environment or gcloud.
        zone: zones. Default: from the environment or gcloud.
        unlisted_zones: allow zones that Google's table does not list for an accelerator. The
            table's date is in `bert_jax.launch.preflight`.
        provisioning: `spot` machines are cheaper, and Google may preempt them. `reservation` needs
            the key `reservation`.
        reservation: name of the reservation with the machines.
        network: the hosts' network. Default: the project's default network.
        subnetwork: the hosts' subnetwork. Default: the project's default subnetwork.
        external_address: whether hosts of queued resources have an external IP address.
        cloud_nat: confirms that the network has Cloud NAT. Without it, hosts without an external
            address cannot reach the package index.
        service_account: the hosts' service account. Queued resources need its e-mail address.
            Default: the project's default account. GKE needs a Kubernetes service account.
            Default: pods use the host network and the account of their node pool.
        labels: labels of every resource.
        data_disk: queued resources: an existing disk of the zone, mounted read-only on every host
            at `/mnt/disks/data`. v6e takes only Hyperdisk ML, older generations only Balanced
            Persistent Disk.
        data_disk_gb: GKE: size in GiB of a new disk of each host for software and datasets.
            Default: the node's disk.
        cluster: name of the GKE cluster.
        namespace: GKE namespace.
        queue: GKE: Kueue's LocalQueue in the namespace. Kueue starts the job when the queue has
            quota for it.
        image: GKE container, built with `tpu_setup/Dockerfile`.
        limits: see `LimitsSection`.
        poll_seconds: interval between polls of the supervisor.
    """

    name: Annotated[str, pydantic.Field(pattern=RESOURCE_NAME)] | None = None
    launcher: LauncherName = "queued-resources"
    on: Annotated[Strings, pydantic.Field(min_length=1)] | None = None
    hosts: int = pydantic.Field(default=1, ge=1, le=64)
    lock: Lock | None = None
    slices: Counts = (1,)
    bucket: PathText | None = None
    project: CloudName | None = None
    zone: Zones | None = None
    unlisted_zones: bool = False
    provisioning: Provisioning = "on-demand"
    reservation: CloudName | None = None
    network: CloudName | None = None
    subnetwork: CloudName | None = None
    external_address: bool = True
    cloud_nat: bool = False
    service_account: CloudName | None = None
    labels: dict[LabelKey, LabelValue] = pydantic.Field(default_factory=dict)
    data_disk: CloudName | None = None
    data_disk_gb: int | None = pydantic.Field(default=None, ge=10)
    cluster: CloudName | None = None
    namespace: CloudName = "default"
    queue: QueueName | None = None
    image: CloudName | None = None
    limits: LimitsSection = LimitsSection()
    poll_seconds: float = pydantic.Field(default=60.0, gt=0)

    @pydantic.field_validator("on")
    @classmethod
    def _known(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name != "local":
                parse_topology(name, key="submit.on", others=("local",))
        return names

    @property
    def installed(self) -> Lock | None:
        """The lock that hosts install. Unset if hosts use an image or the submitter's Python."""
        if self.on == ("local",):
            return self.lock
        return "tpu" if self.launcher == "queued-resources" else None
