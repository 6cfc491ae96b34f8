"""Cloud TPU's queued resources: a request waits for capacity, becomes machines, may lose them."""

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any, Final, Literal

from bert_jax.errors import NoCredentials, UserError, first_line
from bert_jax.launch import machine
from bert_jax.launch.google_calls import GoogleCalls, exceptions
from bert_jax.launch.job import JOB_LABEL, Attempt, JobFiles
from bert_jax.launch.launcher import (
    Existing,
    NotOurs,
    Observation,
    Owner,
    Request,
    State,
    Unavailable,
)
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
            with self._connected() as client:
                expected = (exceptions.AlreadyExists,)
                self._calls.send(
                    client.create_queued_resource, request, what=what, expected=expected
                )
        except exceptions.AlreadyExists as error:
            found = self._get(self._name(attempt))
            if found is None:
                raise Unavailable(f"{what}: one of that name has just been deleted") from error
            if not _is_ours(found, Owner.of(attempt)):
                raise NotOurs(
                    f"submit.name: {attempt.resource} exists in {attempt.placement.zone} and is "
                    f"not of job {attempt.job.directory}; give the job another name"
                ) from error

    def observe(self, attempt: Attempt) -> Observation:
        """Returns how the queued resource is."""
        found = self._get(self._name(attempt))
        if found is None or not _is_ours(found, Owner.of(attempt)):
            return Observation(State.ABSENT)
        return Observation(_state(found), _why(found))

    def delete(self, attempt: Attempt) -> None:
        """Has the queued resource and its machines deleted, and waits until they are."""
        project, zone, _ = place(attempt)
        self._delete(parent(project, zone), attempt.resource, Owner.of(attempt))

    def remove(self, existing: Existing) -> None:
        """Deletes what `existing` has found, whoever made it."""
        self._delete(parent(self._project, existing.zone), existing.resource, existing.owner)

    def existing(self) -> list[Existing]:
        """Returns queued resources with our label in all zones, and machines without one."""
        found = []
        owned = set()
        for resource in self._pages("queued_resources"):
            owned.add(resource.name)
            node = _node_of(resource)
            if job := node.labels.get(JOB_LABEL):
                bills = resource.state.state in _BILLING
                found.append(_existing(node, job, resource.name, _state(resource), bills=bills))
        for node in self._pages("nodes"):
            job = node.labels.get(JOB_LABEL)
            if job and node.queued_resource not in owned:
                found.append(_existing(node, job, node.name, State.ACTIVE, bills=True))
        return found

    @functools.cached_property
    def _client(self) -> tpu_v2.TpuClient:
        return self._calls.client(tpu_v2.TpuClient, TpuGrpcTransport)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tpu_v2.TpuClient]:
        """Gives the client, for one request."""
        try:
            yield self._client
        except (NoCredentials, Unavailable):
            self.__dict__.pop("_client", None)  # that a user has logged in again, a new one sees
            raise

    def _name(self, attempt: Attempt) -> str:
        project, zone, _ = place(attempt)
        return f"{parent(project, zone)}/queuedResources/{attempt.resource}"

    def _get(self, name: str) -> tpu_v2.QueuedResource | None:
        request = tpu_v2.GetQueuedResourceRequest(name=name)
        what = f"queued resource {_last(name)}"
        try:
            with self._connected() as client:
                expected = (exceptions.NotFound,)
                return self._calls.send(
                    client.get_queued_resource, request, what=what, expected=expected
                )
        except exceptions.NotFound:
            return None

    def _delete(self, location: str, resource: str, owner: Owner) -> None:
        name = f"{location}/queuedResources/{resource}"
        request = tpu_v2.DeleteQueuedResourceRequest(name=name, force=True)

        def is_gone() -> bool:
            found = self._get(name)  # each time: what is gone may be followed by another job's
            if found is None or not _is_ours(found, owner):
                return True
            self._ask_to("delete_queued_resource", request)
            return False

        def nodes_are_gone() -> bool:
            # They went with it; one that was left would bill on unseen. Names do not tell which:
            # base-1-3 may be a slice of base-1, or attempt 3 of job base-1.
            left = [
                node
                for node in self._pages("nodes", location)
                if owner.has(node.labels, _directory(node)) and resource in _names(node)
            ]
            for node in left:
                self._ask_to("delete_node", tpu_v2.DeleteNodeRequest(name=node.name))
            return not left

        until_gone(is_gone, what=name, pace=self._pace)
        until_gone(nodes_are_gone, what=f"nodes of {name}", pace=self._pace)

    def _ask_to(self, method: str, request: Any) -> None:
        """Asks for a deletion, which takes a while."""
        # Gone by now; or between two states, in which it cannot be deleted.
        expected = (exceptions.NotFound, exceptions.FailedPrecondition)
        with contextlib.suppress(*expected), self._connected() as client:
            what = f"deletion of {_last(request.name)}"
            self._calls.send(getattr(client, method), request, what=what, expected=expected)

    def _pages(
        self, kind: Literal["queued_resources", "nodes"], location: str | None = None
    ) -> Iterator[Any]:
        """Yields what there is in a zone, or in all of them, which need not all answer."""
        request = tpu_v2.ListNodesRequest
        if kind == "queued_resources":
            request = tpu_v2.ListQueuedResourcesRequest
        where = request(parent=location or parent(self._project, "-"))
        what = f"list of {kind}"
        page: Any
        with self._connected() as client:
            for page in self._calls.pages(getattr(client, f"list_{kind}"), where, what=what):
                yield from getattr(page, kind)
                if page.unreachable and location is not None:
                    raise Unavailable(f"{what}: {location} does not answer")
                if page.unreachable:
                    _log.warning("zones that did not answer: %s", ", ".join(page.unreachable))


def _node_of(resource: tpu_v2.QueuedResource) -> tpu_v2.Node:
    """Returns what was asked for."""
    specs = resource.tpu.node_spec
    return specs[0].node if specs else tpu_v2.Node()


def _directory(node: tpu_v2.Node) -> str:
    return node.metadata.get(machine.attribute(machine.JOB), "")


def _names(node: tpu_v2.Node) -> tuple[str, str]:
    """Returns a node's own name, and that of the queued resource that made it."""
    return _last(node.name), _last(node.queued_resource)


def _is_ours(resource: tpu_v2.QueuedResource, owner: Owner) -> bool:
    node = _node_of(resource)
    return owner.has(node.labels, _directory(node))


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
        directory=_directory(node),
    )
