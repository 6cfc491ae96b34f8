"""The Cloud TPU API on loopback, with Google's message types, documented states and failures.

A queued resource passes through CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE,
one state per request; `suspend` preempts it. Nodes exist, and bill, from PROVISIONING until their
deletion. `Faults` sets failures.
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.cloud import cloudquotas_v1, tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from bert_jax.errors import UserError
from bert_jax.launch import google_service
from bert_jax.parallel.topology import parse_topology

Phase = tpu_v2.QueuedResourceState.State
PROJECT = "test-project"
_PATH = [Phase.CREATING, Phase.ACCEPTED, Phase.WAITING_FOR_RESOURCES]
_PATH += [Phase.PROVISIONING, Phase.ACTIVE]
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_TYPES = {
    "us-west4-a": ["v5litepod-4", "v5litepod-16"],
    "us-east5-b": ["v6e-16"],
    "us-central2-b": ["v4-16"],
}


@dataclasses.dataclass
class Faults:
    """The service's failures.

    Attributes:
        share_unavailable: share of all requests that are answered 503.
        next_errors: errors of the next calls, by method.
        lost_answers: number of requests by method that are executed, but answered 503.
        quota: maximum chips per zone, or None.
        no_capacity: zones where requests stay in the queue.
        late_quota: zones where an accepted request fails in the queue for lack of quota.
    """

    share_unavailable: float = 0.0
    next_errors: dict[str, list[status_pb2.Status]] = dataclasses.field(default_factory=dict)
    lost_answers: Counter[str] = dataclasses.field(default_factory=Counter)
    quota: int | None = None
    no_capacity: set[str] = dataclasses.field(default_factory=set)
    late_quota: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Held:
    """A queued resource, with the service's internal state."""

    message: tpu_v2.QueuedResource
    created: float
    nodes: list[tpu_v2.Node] = dataclasses.field(default_factory=list)


class TpuService(grpc.GenericRpcHandler):
    """The service. Tests read its attributes and set its `faults`.

    Args:
        clock: clock for `valid_until_duration`.
        start: starts the hosts of a queued resource, given its name and node.
        stop: ends the hosts of a queued resource, given its name.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        start: Callable[[str, tpu_v2.Node], None] = lambda name, node: None,
        stop: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.faults = Faults()
        self.requests: Counter[str] = Counter()
        self.made: list[tpu_v2.CreateQueuedResourceRequest] = []
        self.machines_ever = self.clients = 0
        self._clock, self._start, self._stop = clock, start, stop
        self._held: dict[str, Held] = {}
        self._lock = threading.RLock()
        self._random = random.Random(0)

    # Methods for tests.

    def phase(self, name: str) -> Phase | None:
        """Returns a queued resource's state, or None. `name`: last part of the resource name."""
        held = self._named(name)
        return None if held is None else held.message.state.state

    def billing(self) -> list[str]:
        return [node.name for held in self._held.values() for node in held.nodes]

    def suspend(self, name: str) -> None:
        """Preempts the machines. The resource stays SUSPENDING until the next request."""
        held = self._named(name)
        assert held is not None
        state = held.message.state
        assert state.state == Phase.ACTIVE
        state.state = Phase.SUSPENDING
        state.state_initiator = tpu_v2.QueuedResourceState.StateInitiator.SERVICE
        self._stop(name)
        held.nodes.clear()

    def make_by_hand(self, node: tpu_v2.Node) -> None:
        """Creates a node without a queued resource."""
        held = Held(tpu_v2.QueuedResource(name=f"by-hand/{node.name}"), 0.0, [node])
        self._held[held.message.name] = held

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serves all clients created in the block."""
        pool = concurrent.futures.ThreadPoolExecutor(4)
        server = grpc.server(pool, handlers=[self])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()

        def connect(client: Any) -> Any:
            self.clients += 1
            channel = grpc.insecure_channel(f"127.0.0.1:{port}")
            return client(transport=client.get_transport_class("grpc")(channel=channel))

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(google_service, "make_client", connect)
                yield
        finally:
            server.stop(None).wait()
            pool.shutdown()
            for held in self._held.values():
                self._stop(held.message.name.rpartition("/")[2])

    # Methods of the API.

    def CreateQueuedResource(self, request: Any) -> operations_pb2.Operation:
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        _check(request)
        if name in self._held:
            raise refusal(code_pb2.ALREADY_EXISTS, f"Resource '{name}' already exists")
        if self.faults.quota is not None and _chips(request.queued_resource) > self.faults.quota:
            raise quota_error(request.parent.split("/")[3], self.faults.quota)
        message = tpu_v2.QueuedResource(request.queued_resource)
        message.name = name
        message.state = tpu_v2.QueuedResourceState(state=Phase.CREATING)
        self._held[name] = Held(message, self._clock())
        self.made.append(request)
        return operations_pb2.Operation(name=f"{request.parent}/operations/1", done=False)

    def GetQueuedResource(self, request: Any) -> tpu_v2.QueuedResource:
        held = self._require(request.name)
        self._advance(held)
        return held.message

    def ListQueuedResources(self, request: Any) -> tpu_v2.ListQueuedResourcesResponse:
        every = [h.message for n, h in sorted(self._held.items()) if n.startswith("projects/")]
        first = int(request.page_token or 0)
        more = str(first + 2) if first + 2 < len(every) else ""
        return tpu_v2.ListQueuedResourcesResponse(
            queued_resources=every[first : first + 2], next_page_token=more
        )

    def DeleteQueuedResource(self, request: Any) -> operations_pb2.Operation:
        """Deletes a resource at the second request. With nodes, `force` is required."""
        held = self._require(request.name)
        if held.nodes and not request.force:
            raise refusal(code_pb2.FAILED_PRECONDITION, "has nodes; delete them, or use force")
        if held.message.state.state == Phase.DELETING:
            self._stop(request.name.rpartition("/")[2])
            del self._held[request.name]
        else:
            held.message.state.state = Phase.DELETING
        return operations_pb2.Operation(name="operations/2", done=False)

    def ListNodes(self, request: Any) -> tpu_v2.ListNodesResponse:
        """Lists the nodes of a zone, or of all zones for ``-``."""
        place = request.parent.removesuffix("-")
        every = [node for held in self._held.values() for node in held.nodes]
        return tpu_v2.ListNodesResponse(nodes=[n for n in every if n.name.startswith(place)])

    def DeleteNode(self, request: Any) -> operations_pb2.Operation:
        for key, held in list(self._held.items()):
            if any(node.name == request.name for node in held.nodes):
                held.nodes = [node for node in held.nodes if node.name != request.name]
                if key.startswith("by-hand/"):
                    del self._held[key]
                return operations_pb2.Operation(name="operations/3", done=True)
        raise _missing(request.name)

    def ListAcceleratorTypes(self, request: Any) -> tpu_v2.ListAcceleratorTypesResponse:
        kinds = _TYPES.get(request.parent.rpartition("/")[2], [])
        types = [tpu_v2.AcceleratorType(type_=kind) for kind in kinds]
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=types)

    def GetQuotaInfo(self, request: Any) -> cloudquotas_v1.QuotaInfo:
        limit = 32 if self.faults.quota is None else self.faults.quota
        kind, details = cloudquotas_v1.DimensionsInfo, cloudquotas_v1.QuotaDetails(value=limit)
        default = kind(details=details, applicable_locations=["us-west4-a", "us-east5-b"])
        other = kind(dimensions={"zone": "us-east5-b"}, applicable_locations=["us-east5-b"])
        return cloudquotas_v1.QuotaInfo(name=request.name, dimensions_infos=[default, other])

    def service(self, handler_call_details: Any) -> Any:
        """Returns a method's handler, with the official types of request and answer."""
        service, method = handler_call_details.method.lstrip("/").split("/")
        module: Any = cloudquotas_v1 if method == "GetQuotaInfo" else tpu_v2
        assert service in ("google.cloud.tpu.v2.Tpu", "google.api.cloudquotas.v1.CloudQuotas")

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                with self._lock:
                    return self._answer(method, request)
            except Refusal as error:
                context.abort_with_status(rpc_status.to_status(error.status))

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=getattr(module, f"{method}Request").deserialize,
            response_serializer=_serialized,
        )

    def _answer(self, method: str, request: Any) -> Any:
        self.requests[method] += 1
        if errors := self.faults.next_errors.get(method):
            raise Refusal(errors.pop(0))
        if self._random.random() < self.faults.share_unavailable:
            raise refusal(code_pb2.UNAVAILABLE, "try again")
        result = getattr(self, method)(request)
        if self.faults.lost_answers[method] > 0:
            self.faults.lost_answers[method] -= 1
            raise refusal(code_pb2.UNAVAILABLE, "the connection was reset")
        return result

    def _advance(self, held: Held) -> None:
        name, state = held.message.name, held.message.state
        zone = name.split("/")[3]
        if state.state == Phase.SUSPENDING:
            state.state = Phase.SUSPENDED
        elif state.state == Phase.WAITING_FOR_RESOURCES and zone in self.faults.late_quota:
            _fail(state, code_pb2.RESOURCE_EXHAUSTED, "Quota limit exceeded")
        elif state.state == Phase.WAITING_FOR_RESOURCES and zone in self.faults.no_capacity:
            wait: Any = held.message.queueing_policy.valid_until_duration
            if wait and self._clock() - held.created > wait / datetime.timedelta(seconds=1):
                _fail(state, code_pb2.DEADLINE_EXCEEDED, "valid-until has passed")
        elif state.state in _PATH[:-1]:
            state.state = _PATH[_PATH.index(state.state) + 1]
            if state.state == Phase.PROVISIONING:
                held.nodes = _nodes(held.message)
                self.machines_ever += len(held.nodes)
            if state.state == Phase.ACTIVE:
                self._start(name.rpartition("/")[2], held.message.tpu.node_spec[0].node)

    def _named(self, name: str) -> Held | None:
        held = (h for n, h in self._held.items() if n.endswith(f"/queuedResources/{name}"))
        return next(held, None)

    def _require(self, name: str) -> Held:
        if name not in self._held:
            raise _missing(name)
        return self._held[name]


def _fail(state: tpu_v2.QueuedResourceState, code: int, message: str) -> None:
    state.state = Phase.FAILED
    error = status_pb2.Status(code=code, message=message)
    state.failed_data = tpu_v2.QueuedResourceState.FailedData(error=error)


class Refusal(Exception):
    def __init__(self, status: status_pb2.Status) -> None:
        self.status = status


def status(code: int, message: str, *details: Any) -> status_pb2.Status:
    packed = [any_pb2.Any() for _ in details]
    for place, detail in zip(packed, details, strict=True):
        place.Pack(detail)
    return status_pb2.Status(code=code, message=message, details=packed)


def refusal(code: int, message: str, *details: Any) -> Refusal:
    return Refusal(status(code, message, *details))


def _serialized(answer: Any) -> bytes:
    if isinstance(answer, operations_pb2.Operation):
        return answer.SerializeToString()
    kind: Any = type(answer)
    return kind.serialize(answer)


def quota_error(zone: str, limit: int) -> Refusal:
    """Cloud TPU's error for a project with too little quota."""
    text = (
        f"Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: {limit}"
    )
    violation = error_details_pb2.QuotaFailure.Violation(subject=zone, description=text)
    failure = error_details_pb2.QuotaFailure(violations=[violation])
    return refusal(code_pb2.RESOURCE_EXHAUSTED, f"{text} in zone {zone}.", failure)


def denied(permission: str) -> status_pb2.Status:
    return status(code_pb2.PERMISSION_DENIED, f"Permission '{permission}' denied on '{PROJECT}'")


def not_enabled() -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason="SERVICE_DISABLED", domain="googleapis.com")
    return status(code_pb2.PERMISSION_DENIED, "Cloud TPU API has not been used before", info)


def too_fast(seconds: int) -> status_pb2.Status:
    """A 429 error with a retry delay."""
    info = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds))
    return status(code_pb2.RESOURCE_EXHAUSTED, "Quota exceeded for read requests per minute", info)


def _missing(name: str) -> Refusal:
    return refusal(code_pb2.NOT_FOUND, f"Resource '{name}' was not found")


def _chips(message: tpu_v2.QueuedResource) -> int:
    spec = message.tpu.node_spec[0]
    topology = parse_topology(spec.node.accelerator_type)
    return topology.chips * max(spec.multislice_params.node_count, 1)


def _nodes(message: tpu_v2.QueuedResource) -> list[tpu_v2.Node]:
    spec = message.tpu.node_spec[0]
    count, prefix = spec.multislice_params.node_count, spec.multislice_params.node_id_prefix
    names = [f"{prefix}-{index}" for index in range(count)] if count else [spec.node_id]
    nodes = [tpu_v2.Node(spec.node) for _ in names]
    for node, name in zip(nodes, names, strict=True):
        node.name = f"{spec.parent}/nodes/{name}"
        node.queued_resource = message.name
    return nodes


def _check(request: tpu_v2.CreateQueuedResourceRequest) -> None:
    (spec,) = request.queued_resource.tpu.node_spec
    node = spec.node
    try:
        topology = parse_topology(node.accelerator_type)
    except UserError as error:
        raise refusal(code_pb2.INVALID_ARGUMENT, str(error)) from error
    several = spec.multislice_params.node_count
    wrong = [
        request.parent.split("/")[:2] != ["projects", PROJECT] and "no such project",
        spec.parent != request.parent and "node's parent is another",
        not _ID.fullmatch(request.queued_resource_id) and "invalid queued_resource_id",
        bool(spec.node_id) == (several > 1) and "either node_id or several nodes",
        node.runtime_version != topology.accelerator.runtime_version and "invalid runtime",
        any(not _LABEL.fullmatch(key) for key in node.labels) and "invalid label",
        any(len(value) > 256 * 1024 for value in node.metadata.values()) and "metadata too long",
    ]
    if found := [line for line in wrong if line]:
        raise refusal(code_pb2.INVALID_ARGUMENT, f"The request is invalid: {found[0]}")
