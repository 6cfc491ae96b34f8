"""Settings of `bert-jax submit`."""

from typing import Annotated, Literal

import pydantic

from bert_jax.parallel.topology import parse_topology
from bert_jax.section import PathText, Section, Strings, as_tuple

LauncherName = Literal["queued-resources", "gke"]
Provisioning = Literal["on-demand", "spot", "reservation"]


Counts = Annotated[
    tuple[Annotated[int, pydantic.Field(ge=1)], ...],
    pydantic.BeforeValidator(lambda value: (value,) if isinstance(value, int) else as_tuple(value)),
    pydantic.Field(min_length=1),
]
"""A list of whole numbers; YAML may give one as it is."""

RESOURCE_NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"

# Google Cloud's rules for labels and names; no shell reads any of the characters.
LabelKey = Annotated[str, pydantic.Field(pattern=r"^[a-z][-_a-z0-9]{0,62}$")]
LabelValue = Annotated[str, pydantic.Field(pattern=r"^[-_a-z0-9]{0,63}$")]
CloudName = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][-._:/@A-Za-z0-9]{0,254}$")]
Zone = Annotated[str, pydantic.Field(pattern=r"^[a-z][-a-z0-9]{0,62}$")]
Zones = Annotated[tuple[Zone, ...], pydantic.BeforeValidator(as_tuple)]
"""A list of zones; YAML may give one as it is."""


class LimitsSection(Section):
    """When a job is given up and its machines are deleted.

    Attributes:
        retries: most restarts of machines, after a preemption or a failure.
        hours: of wall time, from the first request on.
        cost: US dollars, by the price list of `bert-jax plan`.
        wait_hours: how long one request may wait for capacity (`valid-until`). A round in which no
            placement had any ends the job. None: one placement waits for ever, several a quarter of
            an hour each, round after round.
    """

    retries: int = pydantic.Field(default=100, ge=0)
    hours: float | None = pydantic.Field(default=None, gt=0)
    cost: float | None = pydantic.Field(default=None, gt=0)
    wait_hours: float | None = pydantic.Field(default=None, gt=0)


class SubmitSection(Section):
    """Where a job runs and what it may cost.

    `on`, `zone` and `slices` may be lists: each combination is tried in turn, the last key's
    values first, until one has capacity.

    Attributes:
        name: the job's; None for the run directory's last part.
        launcher: the service that makes the machines of a topology.
        on: topologies in any spelling (`v5litepod-16`), or `local`.
        hosts: number of processes of `on: local`.
        slices: number of slices of each topology.
        bucket: place of the wheel, configuration, logs and state of the job: ``gs://…``; a
            directory for `on: local`.
        project: Google Cloud's; None for the environment's or gcloud's own.
        zone: likewise.
        unlisted_zones: ask for an accelerator also in zones that Google's table, as of the date in
            `bert_jax.launch.preflight`, lacks for it.
        provisioning: `spot` is cheaper and may be taken back, `reservation` needs the key of that
            name.
        reservation: the reservation to take machines from.
        network: the hosts' network; None for the project's default.
        subnetwork: likewise.
        external_address: whether hosts have an address on the internet.
        service_account: the hosts' account; None for the project's default. An address with queued
            resources, an account of the cluster with GKE.
        labels: labels of every resource.
        data_disk: queued resources: an existing disk of the zone, mounted read-only on every host
            at `/mnt/disks/data`.
        data_disk_gb: GKE: size of a new disk of each host for software and datasets; None for the
            node's own.
        cluster: GKE cluster, by name.
        namespace: GKE namespace.
        image: GKE container, made with `tpu_setup/Dockerfile`.
        limits: when the job is given up.
        poll_seconds: pause between two looks of the supervisor.
    """

    name: Annotated[str, pydantic.Field(pattern=RESOURCE_NAME)] | None = None
    launcher: LauncherName = "queued-resources"
    on: Annotated[Strings, pydantic.Field(min_length=1)] | None = None
    hosts: int = pydantic.Field(default=1, ge=1, le=64)
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
    service_account: CloudName | None = None
    labels: dict[LabelKey, LabelValue] = pydantic.Field(default_factory=dict)
    data_disk: CloudName | None = None
    data_disk_gb: int | None = pydantic.Field(default=None, ge=10)
    cluster: CloudName | None = None
    namespace: CloudName = "default"
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
