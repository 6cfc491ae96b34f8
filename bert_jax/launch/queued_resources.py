"""Cloud TPU's queued resources: a request waits for capacity, becomes machines, may lose them."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

from bert_jax.errors import UserError, first_line
from bert_jax.launch import machine
from bert_jax.launch.google_calls import GoogleCalls, exceptions
from bert_jax.launch.job import JOB_LABEL, Attempt, JobFiles
from bert_jax.launch.launcher import Existing, Observation, Request, State
from bert_jax.launch.pace import NOT_INSTALLED, Pace, until_gone
from bert_jax.launch.queued_resource import as_command, as_json, creation, parent, place

try:
    from google.cloud import tpu_v2
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
except ImportError as error:
    raise UserError(NOT_INSTALLED) from error

_Phase = tpu_v2.QueuedResourceState.State
_STATES: Final = {
    _Phase.CREATING: State.WAITING,
    _Phase.ACCEPTED: State.WAITING,
    _Phase.WAITING_FOR_RESOURCES: State.WAITING,
    _Phase.PROVISIONING: State.STARTING,
    _Phase.ACTIVE: State.ACTIVE,
    _Phase.SUSPENDING: State.SUSPENDED,
    _Phase.SUSPENDED: State.SUSPENDED,
    _Phase.FAILED: State.FAILED,
    _Phase.DELETING: State.DELETING,
}
# Machines exist, or come and go.
_BILLING: Final = (_Phase.PROVISIONING, _Phase.ACTIVE, _Phase.SUSPENDING, _Phase.DELETING)

_log: Final = logging.getLogger("bert_jax.launch")


class QueuedResources:
    """A `Launcher` through the Cloud TPU API, v2.

    Any method but `render` raises UserError: no credentials, no permission, the API is off.
    """

    def __init__(self, project: str, *, pace: Pace | None = None) -> None:
        self._project = project
        self._pace = pace or Pace()
        self._calls = GoogleCalls(project, "tpu", self._pace)

    def render(self, attempt: Attempt) -> list[Request]:
        """Returns the one request that asks for the machines."""
        request = creation(attempt, "")
        what = f"queued resource {attempt.resource} in {attempt.placement.zone}"
        return [Request(what, as_json(request), as_command(request))]

    def create(self, attempt: Attempt) -> None:
        """Asks for the machines, which run the script that was staged with the job."""
        script = JobFiles(attempt.job.directory).startup.read_text()
        request = creation(attempt, script)
        what = f"queued resource {attempt.resource}"
        try:
            self._calls.send(self._client.create_queued_resource, request, what=what)
        except exceptions.AlreadyExists as error:
            found = self._get(self._name(attempt))
            job = found and _labels(found).get(JOB_LABEL)
            if job != attempt.job.name:
                raise UserError(
                    f"submit.name: {attempt.resource} exists in {attempt.placement.zone} and is "
                    f"not of job {attempt.job.name}; give the job another name"
                ) from error
        except exceptions.NotFound as error:
            raise UserError(f"{what}: {error.message}") from error

    def observe(self, attempt: Attempt) -> Observation:
        """Returns how the queued resource is."""
        found = self._get(self._name(attempt))
        if found is None:
            return Observation(State.ABSENT)
        return Observation(_state(found), _why(found))

    def delete(self, attempt: Attempt) -> None:
        """Has the queued resource and its machines deleted, and waits until they are."""
        project, zone, _ = place(attempt)
        slices = attempt.placement.slices
        nodes = [attempt.resource]
        if slices > 1:
            nodes = [f"{attempt.resource}-{index}" for index in range(slices)]
        self._delete(parent(project, zone), attempt.resource, nodes)

    def remove(self, existing: Existing) -> None:
        """Deletes what `existing` has found, whoever made it."""
        self._delete(parent(self._project, existing.zone), existing.resource, [existing.resource])

    def existing(self) -> list[Existing]:
        """Returns queued resources with our label in all zones, and machines without one."""
        found = []
        owned = set()
        for resource in self._pages("queued_resources"):
            owned.add(resource.name)
            if job := _labels(resource).get(JOB_LABEL):
                bills = resource.state.state in _BILLING
                node = resource.tpu.node_spec[0].node
                found.append(_existing(node, job, resource.name, _state(resource), bills=bills))
        for node in self._pages("nodes"):
            job = node.labels.get(JOB_LABEL)
            if job and node.queued_resource not in owned:
                found.append(_existing(node, job, node.name, State.ACTIVE, bills=True))
        return found

    @functools.cached_property
    def _client(self) -> tpu_v2.TpuClient:
        return self._calls.client(tpu_v2.TpuClient, TpuGrpcTransport)

    def _name(self, attempt: Attempt) -> str:
        project, zone, _ = place(attempt)
        return f"{parent(project, zone)}/queuedResources/{attempt.resource}"

    def _get(self, name: str) -> tpu_v2.QueuedResource | None:
        request = tpu_v2.GetQueuedResourceRequest(name=name)
        what = f"queued resource {_last(name)}"
        try:
            return self._calls.send(self._client.get_queued_resource, request, what=what)
        except exceptions.NotFound:
            return None

    def _delete(self, location: str, resource: str, nodes: list[str]) -> None:
        name = f"{location}/queuedResources/{resource}"
        request = tpu_v2.DeleteQueuedResourceRequest(name=name, force=True)
        self._until_gone(self._client.delete_queued_resource, request, name)
        for node in nodes:  # they went with it; one that was left would bill on unseen
            name = f"{location}/nodes/{node}"
            self._until_gone(self._client.delete_node, tpu_v2.DeleteNodeRequest(name=name), name)

    def _until_gone(self, method: Callable[..., object], request: object, name: str) -> None:
        def is_gone() -> bool:
            try:
                self._calls.send(method, request, what=f"deletion of {_last(name)}")
            except exceptions.NotFound:
                return True
            except exceptions.FailedPrecondition:
                pass  # between two states, in which it cannot be deleted
            return False

        until_gone(is_gone, what=name, pace=self._pace)

    def _pages(self, kind: Literal["queued_resources", "nodes"]) -> Iterator[Any]:
        client, request = self._client, tpu_v2.ListNodesRequest
        if kind == "queued_resources":
            request = tpu_v2.ListQueuedResourcesRequest
        everywhere = request(parent=parent(self._project, "-"))
        page: Any
        for page in self._calls.pages(
            getattr(client, f"list_{kind}"), everywhere, what=f"list of {kind}"
        ):
            yield from getattr(page, kind)
            if page.unreachable:
                _log.warning("zones that did not answer: %s", ", ".join(page.unreachable))


def _labels(resource: tpu_v2.QueuedResource) -> Mapping[str, str]:
    specs = resource.tpu.node_spec
    return specs[0].node.labels if specs else {}


def _state(resource: tpu_v2.QueuedResource) -> State:
    # One that Google adds is on its way: a supervisor looks again.
    return _STATES.get(resource.state.state, State.STARTING)


def _why(resource: tpu_v2.QueuedResource) -> str:
    state = resource.state
    if state.state == _Phase.FAILED:
        return first_line(Exception(state.failed_data.error.message or "no reason given"))
    if state.state in (_Phase.SUSPENDING, _Phase.SUSPENDED):
        by = tpu_v2.QueuedResourceState.StateInitiator.USER
        return "suspended by a user" if state.state_initiator == by else "taken back by the service"
    return ""


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _existing(node: tpu_v2.Node, job: str, name: str, state: State, *, bills: bool) -> Existing:
    """Returns what has a full name: ``projects/P/locations/ZONE/nodes/NAME``."""
    return Existing(
        job=job,
        resource=_last(name),
        zone=name.split("/")[3],
        state=state,
        bills=bills,
        directory=node.metadata.get(machine.attribute(machine.JOB), ""),
    )
