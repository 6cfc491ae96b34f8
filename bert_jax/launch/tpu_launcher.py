"""Launcher for Cloud TPU's queued resources: requests that wait for capacity."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Final, Literal

from google.cloud import tpu_v2

from bert_jax.errors import first_line
from bert_jax.launch import launcher
from bert_jax.launch.assignment import JOB_ATTRIBUTE
from bert_jax.launch.google_service import GoogleService, exceptions
from bert_jax.launch.job import JOB_LABEL, Attempt, JobFiles
from bert_jax.launch.launcher import Existing, Observation, Owner, State
from bert_jax.launch.request_retries import RequestLimits, until_gone
from bert_jax.launch.tpu_request import as_command, as_json, creation

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
# States in which machines may exist.
_BILLING: Final = (_Phase.PROVISIONING, _Phase.ACTIVE, _Phase.SUSPENDING, _Phase.DELETING)

_log: Final = logging.getLogger("bert_jax.launch")


class QueuedResources:
    """A `Launcher` for the Cloud TPU API, v2.

    Methods other than `render` raise UserError if credentials or a permission is missing, or the
    API is disabled.
    """

    def __init__(self, project: str, *, pace: RequestLimits | None = None) -> None:
        self._project, self._pace = project, pace or RequestLimits()
        self._service = GoogleService(project, tpu_v2.TpuClient, pace=self._pace)

    def render(self, attempt: Attempt) -> list[launcher.Request]:
        """Returns the single request for the machines."""
        request = creation(attempt, self._location(attempt), "")
        what = f"queued resource {attempt.resource} in {attempt.placement.zone}"
        return [launcher.Request(what, as_json(request), as_command(request))]

    def create(self, attempt: Attempt) -> None:
        """Requests the machines, which run the job's staged startup script."""
        script = JobFiles(attempt.job.directory).startup.read_text()
        request = creation(attempt, self._location(attempt), script)
        what, expected = f"queued resource {attempt.resource}", (exceptions.AlreadyExists,)
        try:
            self._service.send("create_queued_resource", request, what=what, expected=expected)
        except exceptions.AlreadyExists:
            found = self._get(self._name(attempt))
            owner = None if found is None else _owner(_node_of(found))
            launcher.require_ours(attempt, owner, what, where=str(attempt.placement.zone))

    def observe(self, attempt: Attempt) -> Observation:
        """Returns the state of the queued resource."""
        found = self._get(self._name(attempt))
        if found is None or not _owner(_node_of(found)).is_job(Owner.of(attempt)):
            return Observation(State.ABSENT)
        return Observation(_state(found), _reason(found))

    def delete(self, attempt: Attempt) -> None:
        """Deletes the queued resource and its machines."""
        self._delete(self._location(attempt), attempt.resource, Owner.of(attempt))

    def remove(self, existing: Existing) -> None:
        """Deletes a queued resource that `existing()` returned, and its machines."""
        self._delete(parent(self._project, existing.zone), existing.resource, existing.owner)

    def existing(self) -> list[Existing]:
        """Returns our queued resources in all zones, and our machines without a queued resource."""
        queued = list(self._list("queued_resources"))
        names = {resource.name for resource in queued}
        found = [
            (_node_of(item), item.name, _state(item), item.state.state in _BILLING)
            for item in queued
        ]
        found += [
            (node, node.name, State.ACTIVE, True)
            for node in self._list("nodes")
            if node.queued_resource not in names
        ]
        return [
            Existing(_owner(node), _last(name), name.split("/")[3], state, bills)
            for node, name, state, bills in found
            if node.labels.get(JOB_LABEL)
        ]

    def _location(self, attempt: Attempt) -> str:
        return parent(self._project, attempt.placement.zone or "")

    def _name(self, attempt: Attempt) -> str:
        return f"{self._location(attempt)}/queuedResources/{attempt.resource}"

    def _get(self, name: str) -> tpu_v2.QueuedResource | None:
        request = tpu_v2.GetQueuedResourceRequest(name=name)
        what, expected = f"queued resource {_last(name)}", (exceptions.NotFound,)
        try:
            return self._service.send("get_queued_resource", request, what=what, expected=expected)
        except exceptions.NotFound:
            return None

    def _delete(self, location: str, resource: str, owner: Owner) -> None:
        name = f"{location}/queuedResources/{resource}"
        request = tpu_v2.DeleteQueuedResourceRequest(name=name, force=True)

        def is_gone() -> bool:
            found = self._get(name)  # on each call: another job may take a free name
            if found is None or not _owner(_node_of(found)).is_job(owner):
                return True
            self._ask_to("delete_queued_resource", request)
            return False

        def nodes_are_gone() -> bool:
            # A node without its queued resource would keep billing unseen. Compare owners, because
            # base-1-3 may be a slice of base-1, or attempt 3 of job base-1.
            left = [
                node
                for node in self._list("nodes", location)
                if resource in (_last(node.name), _last(node.queued_resource))
                and _owner(node).is_job(owner)
            ]
            for node in left:
                self._ask_to("delete_node", tpu_v2.DeleteNodeRequest(name=node.name))
            return not left

        until_gone(is_gone, what=name, pace=self._pace)
        until_gone(nodes_are_gone, what=f"nodes of {name}", pace=self._pace)

    def _ask_to(self, method: str, request: Any) -> None:
        # The resource is already gone, or cannot be deleted yet.
        expected = (exceptions.NotFound, exceptions.FailedPrecondition)
        with contextlib.suppress(*expected):
            what = f"deletion of {_last(request.name)}"
            self._service.send(method, request, what=what, expected=expected)

    def _list(
        self, kind: Literal["queued_resources", "nodes"], location: str | None = None
    ) -> Iterator[Any]:
        """Yields the resources of `location`. Default: of all zones that answer."""
        queued = kind == "queued_resources"
        request = tpu_v2.ListQueuedResourcesRequest if queued else tpu_v2.ListNodesRequest
        where = request(parent=location or parent(self._project, "-"))
        what = f"list of {kind}"
        for page in self._service.pages(f"list_{kind}", where, what=what):
            yield from getattr(page, kind)
            if page.unreachable and location is not None:
                raise launcher.Unavailable(
                    "cloud.zone_silent", f"{location} does not answer", place=what
                )
            if page.unreachable:
                _log.warning("no answer from zones: %s", ", ".join(page.unreachable))


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _node_of(resource: tpu_v2.QueuedResource) -> tpu_v2.Node:
    """Returns the node in a queued resource's request."""
    specs = resource.tpu.node_spec
    return specs[0].node if specs else tpu_v2.Node()


def _owner(node: tpu_v2.Node) -> Owner:
    return Owner(node.labels.get(JOB_LABEL, ""), node.metadata.get(JOB_ATTRIBUTE, ""))


def _state(resource: tpu_v2.QueuedResource) -> State:
    # An unknown state counts as starting: the supervisor polls again.
    return _STATES.get(resource.state.state, State.STARTING)


def _reason(resource: tpu_v2.QueuedResource) -> str:
    state = resource.state
    if state.state == _Phase.FAILED:
        return first_line(Exception(state.failed_data.error.message or "no reason given"))
    if state.state in (_Phase.SUSPENDING, _Phase.SUSPENDED):
        by = tpu_v2.QueuedResourceState.StateInitiator.USER
        return "suspended by a user" if state.state_initiator == by else "preempted by the service"
    return ""


def parent(project: str, zone: str) -> str:
    """Returns the resource name of a zone."""
    return f"projects/{project}/locations/{zone}"
