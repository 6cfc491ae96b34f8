"""The Cloud TPU API on loopback: Google's own messages, the documented states, and its failures.

A queued resource goes CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE, a state each
time that it is looked at; `suspend` takes it back. Nodes exist, and bill, from PROVISIONING until
they are deleted. What the messages cannot say is in `Faults`.
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
from typing import Any, Protocol

import grpc
from google.cloud import cloudquotas_v1, tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from bert_jax.errors import UserError
from bert_jax.parallel.topology import parse_topology

Phase = tpu_v2.QueuedResourceState.State
PROJECT = "test-project"
_PATH = [Phase.CREATING, Phase.ACCEPTED, Phase.WAITING_FOR_RESOURCES]
_PATH += [Phase.PROVISIONING, Phase.ACTIVE]
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


class Machines(Protocol):
    """What runs the startup script of a resource's nodes."""

    def start(self, name: str, node: tpu_v2.Node, slices: int) -> None:
        """Starts all hosts."""

    def stop(self, name: str) -> None:
        """Ends them: the notice that a machine gets, then its end."""


class NoMachines:
    """Nothing is run."""

    def start(self, name: str, node: tpu_v2.Node, slices: int) -> None:
        """Does nothing."""

    def stop(self, name: str) -> None:
        """Does nothing."""


@dataclasses.dataclass
class Faults:
    """What goes wrong.

    Attributes:
        share_unavailable: of all requests, which are answered 503.
        next_errors: by method, answered in turn before it does anything.
        lost_answers: by method, how many requests are done and then answered 503.
        quota: chips that a zone may have; None: any number.
        no_capacity: zones in which nothing leaves the queue.
        late_quota: zones in which a request is accepted, and fails by its quota in the queue.
    """

    share_unavailable: float = 0.0
    next_errors: dict[str, list[status_pb2.Status]] = dataclasses.field(default_factory=dict)
    lost_answers: Counter[str] = dataclasses.field(default_factory=Counter)
    quota: int | None = None
    no_capacity: set[str] = dataclasses.field(default_factory=set)
    late_quota: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Held:
    """A queued resource, and what the service knows of it besides."""

    message: tpu_v2.QueuedResource
    created: float
    nodes: list[tpu_v2.Node] = dataclasses.field(default_factory=list)

    @property
    def phase(self) -> Phase:
        """Its state."""
        return self.message.state.state

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.message.state.state = phase


class TpuService:
    """The service. Tests read its fields and set its `faults`."""

    def __init__(self, *, machines: Machines | None = None, clock: Callable[[], float]) -> None:
        """Serves from `serving` on; ``clock`` is that of `valid_until_duration`."""
        self.faults = Faults()
        self.requests: Counter[str] = Counter()
        self.made: list[tpu_v2.CreateQueuedResourceRequest] = []
        self.machines_ever = 0
        self._machines = machines or NoMachines()
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._lock = threading.RLock()
        self._random = random.Random(0)

    # What a test looks at and does.

    def phase(self, name: str) -> Phase | None:
        """The state of a queued resource by its last name; None: there is none."""
        held = self._named(name)
        return None if held is None else held.phase

    def billing(self) -> list[str]:
        """All nodes that exist."""
        return [node.name for held in self._held.values() for node in held.nodes]

    def suspend(self, name: str) -> None:
        """Takes the machines back. The resource stays SUSPENDING until it is looked at."""
        held = self._named(name)
        assert held is not None
        assert held.phase == Phase.ACTIVE
        held.phase = Phase.SUSPENDING
        held.message.state.state_initiator = tpu_v2.QueuedResourceState.StateInitiator.SERVICE
        self._machines.stop(name)
        held.nodes.clear()

    def make_by_hand(self, node: tpu_v2.Node) -> None:
        """A node that no queued resource owns."""
        held = Held(tpu_v2.QueuedResource(name=f"by-hand/{node.name}"), 0.0, [node])
        self._held[held.message.name] = held

    # What the API does.

    def create(self, request: tpu_v2.CreateQueuedResourceRequest) -> operations_pb2.Operation:
        """CreateQueuedResource."""
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        _check(request)
        if name in self._held:
            raise refusal(code_pb2.ALREADY_EXISTS, f"Resource '{name}' already exists")
        zone = request.parent.split("/")[3]
        chips = _chips(request.queued_resource)
        if self.faults.quota is not None and chips > self.faults.quota:
            raise quota_error(zone, self.faults.quota)
        message = tpu_v2.QueuedResource(request.queued_resource)
        message.name = name
        message.state = tpu_v2.QueuedResourceState(state=Phase.CREATING)
        self._held[name] = Held(message, self._clock())
        self.made.append(request)
        return operations_pb2.Operation(name=f"{request.parent}/operations/1", done=False)

    def get(self, request: tpu_v2.GetQueuedResourceRequest) -> tpu_v2.QueuedResource:
        """GetQueuedResource: moves it on."""
        held = self._require(request.name)
        self._advance(held)
        if request.name not in self._held:
            raise _missing(request.name)
        return held.message

    def list(
        self, request: tpu_v2.ListQueuedResourcesRequest
    ) -> tpu_v2.ListQueuedResourcesResponse:
        """ListQueuedResources, two on a page."""
        every = [h.message for n, h in sorted(self._held.items()) if n.startswith("projects/")]
        first = int(request.page_token or 0)
        more = str(first + 2) if first + 2 < len(every) else ""
        return tpu_v2.ListQueuedResourcesResponse(
            queued_resources=every[first : first + 2], next_page_token=more
        )

    def delete(self, request: tpu_v2.DeleteQueuedResourceRequest) -> operations_pb2.Operation:
        """DeleteQueuedResource: of an active one only by force; it takes a while."""
        held = self._require(request.name)
        if held.nodes and not request.force:
            raise refusal(code_pb2.FAILED_PRECONDITION, "has nodes; delete them, or use force")
        if held.phase == Phase.DELETING:  # it has taken a while
            self._machines.stop(request.name.rpartition("/")[2])
            del self._held[request.name]
        else:
            held.phase = Phase.DELETING
        return operations_pb2.Operation(name="operations/2", done=False)

    def list_nodes(self, request: tpu_v2.ListNodesRequest) -> tpu_v2.ListNodesResponse:
        """ListNodes: of a zone, or of all for ``-``."""
        place = request.parent.removesuffix("-")
        every = [node for held in self._held.values() for node in held.nodes]
        return tpu_v2.ListNodesResponse(nodes=[n for n in every if n.name.startswith(place)])

    def delete_node(self, request: tpu_v2.DeleteNodeRequest) -> operations_pb2.Operation:
        """DeleteNode."""
        for key, held in list(self._held.items()):
            if any(node.name == request.name for node in held.nodes):
                held.nodes = [node for node in held.nodes if node.name != request.name]
                if key.startswith("by-hand/"):
                    del self._held[key]
                return operations_pb2.Operation(name="operations/3", done=True)
        raise _missing(request.name)

    def list_types(
        self, request: tpu_v2.ListAcceleratorTypesRequest
    ) -> tpu_v2.ListAcceleratorTypesResponse:
        """ListAcceleratorTypes: v4, v5e and v6e, each in a zone."""
        zone = request.parent.rpartition("/")[2]
        kinds = {"us-west4-a": ["v5litepod-4", "v5litepod-16"], "us-east5-b": ["v6e-16"]}
        kinds["us-central2-b"] = ["v4-16"]
        types = [tpu_v2.AcceleratorType(type_=kind) for kind in kinds.get(zone, [])]
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=types)

    def quota(self, request: cloudquotas_v1.GetQuotaInfoRequest) -> cloudquotas_v1.QuotaInfo:
        """GetQuotaInfo: a default, and another limit in one zone."""
        limit = 32 if self.faults.quota is None else self.faults.quota
        kind = cloudquotas_v1.DimensionsInfo
        return cloudquotas_v1.QuotaInfo(
            name=request.name,
            dimensions_infos=[
                kind(
                    details=cloudquotas_v1.QuotaDetails(value=limit),
                    applicable_locations=["us-west4-a", "us-east5-b"],
                ),
                kind(dimensions={"zone": "us-east5-b"}, applicable_locations=["us-east5-b"]),
            ],
        )

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Gives the address at which it is served, as `EMULATOR` takes it."""
        pool = concurrent.futures.ThreadPoolExecutor(4)
        server = grpc.server(pool, handlers=[_Methods(self)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
            pool.shutdown()
            for held in self._held.values():
                self._machines.stop(held.message.name.rpartition("/")[2])

    def answer(self, method: str, request: Any, do: Callable[[Any], Any]) -> Any:
        """Answers one request, or fails as it should."""
        with self._lock:
            self.requests[method] += 1
            if errors := self.faults.next_errors.get(method):
                raise Refusal(errors.pop(0))
            if self._random.random() < self.faults.share_unavailable:
                raise refusal(code_pb2.UNAVAILABLE, "try again")
            result = do(request)
            if self.faults.lost_answers[method] > 0:
                self.faults.lost_answers[method] -= 1
                raise refusal(code_pb2.UNAVAILABLE, "the connection was reset")
            return result

    def _advance(self, held: Held) -> None:
        name = held.message.name
        zone = name.split("/")[3]
        if held.phase == Phase.SUSPENDING:
            held.phase = Phase.SUSPENDED
        elif held.phase == Phase.WAITING_FOR_RESOURCES and zone in self.faults.late_quota:
            self._fail(held, code_pb2.RESOURCE_EXHAUSTED, "Quota limit exceeded")
        elif held.phase == Phase.WAITING_FOR_RESOURCES and zone in self.faults.no_capacity:
            wait: Any = held.message.queueing_policy.valid_until_duration
            if wait and self._clock() - held.created > wait / datetime.timedelta(seconds=1):
                self._fail(held, code_pb2.DEADLINE_EXCEEDED, "valid-until has passed")
        elif held.phase in _PATH[:-1]:
            held.phase = _PATH[_PATH.index(held.phase) + 1]
            if held.phase == Phase.PROVISIONING:
                held.nodes = _nodes(held.message)
                self.machines_ever += len(held.nodes)
            if held.phase == Phase.ACTIVE:
                node = held.message.tpu.node_spec[0].node
                self._machines.start(name.rpartition("/")[2], node, len(held.nodes))

    def _fail(self, held: Held, code: int, message: str) -> None:
        held.phase = Phase.FAILED
        error = status_pb2.Status(code=code, message=message)
        held.message.state.failed_data = tpu_v2.QueuedResourceState.FailedData(error=error)

    def _named(self, name: str) -> Held | None:
        held = (h for n, h in self._held.items() if n.endswith(f"/queuedResources/{name}"))
        return next(held, None)

    def _require(self, name: str) -> Held:
        if name not in self._held:
            raise _missing(name)
        return self._held[name]


class Refusal(Exception):
    """An error as the API sends it."""

    def __init__(self, status: status_pb2.Status) -> None:
        self.status = status


def status(code: int, message: str, *details: Any) -> status_pb2.Status:
    """Returns an error with details."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code, message=message, details=packed)


def refusal(code: int, message: str, *details: Any) -> Refusal:
    """Returns the same to be raised."""
    return Refusal(status(code, message, *details))


def quota_error(zone: str, limit: int) -> Refusal:
    """What Cloud TPU says when a project may not have so many chips."""
    text = (
        f"Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: {limit}"
    )
    violation = error_details_pb2.QuotaFailure.Violation(subject=zone, description=text)
    failure = error_details_pb2.QuotaFailure(violations=[violation])
    return refusal(code_pb2.RESOURCE_EXHAUSTED, f"{text} in zone {zone}.", failure)


def denied(permission: str) -> status_pb2.Status:
    """What is said to whom a permission is missing."""
    return status(code_pb2.PERMISSION_DENIED, f"Permission '{permission}' denied on '{PROJECT}'")


def not_enabled() -> status_pb2.Status:
    """What is said where the API is off."""
    info = error_details_pb2.ErrorInfo(reason="SERVICE_DISABLED", domain="googleapis.com")
    return status(code_pb2.PERMISSION_DENIED, "Cloud TPU API has not been used before", info)


def too_fast(seconds: int) -> status_pb2.Status:
    """429 with a time after which to ask again."""
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
    count = spec.multislice_params.node_count
    prefix = spec.multislice_params.node_id_prefix
    names = [f"{prefix}-{index}" for index in range(count)] if count else [spec.node_id]
    nodes = [tpu_v2.Node(spec.node) for _ in names]
    for node, name in zip(nodes, names, strict=True):
        node.name = f"{spec.parent}/nodes/{name}"
        node.queued_resource = message.name
    return nodes


def _check(request: tpu_v2.CreateQueuedResourceRequest) -> None:
    """Refuses what the API refuses."""
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


class _Methods(grpc.GenericRpcHandler):
    """The methods by their addresses, with the official types of request and answer."""

    def __init__(self, service: TpuService) -> None:
        self._service = service
        v2 = tpu_v2
        self._methods: dict[str, tuple[Callable[[Any], Any], Any]] = {
            "CreateQueuedResource": (service.create, v2.CreateQueuedResourceRequest),
            "GetQueuedResource": (service.get, v2.GetQueuedResourceRequest),
            "ListQueuedResources": (service.list, v2.ListQueuedResourcesRequest),
            "DeleteQueuedResource": (service.delete, v2.DeleteQueuedResourceRequest),
            "ListNodes": (service.list_nodes, v2.ListNodesRequest),
            "DeleteNode": (service.delete_node, v2.DeleteNodeRequest),
            "ListAcceleratorTypes": (service.list_types, v2.ListAcceleratorTypesRequest),
            "GetQuotaInfo": (service.quota, cloudquotas_v1.GetQuotaInfoRequest),
        }

    def service(self, handler_call_details: Any) -> Any:
        """Returns what answers a method."""
        service, method = handler_call_details.method.lstrip("/").split("/")
        assert service in ("google.cloud.tpu.v2.Tpu", "google.api.cloudquotas.v1.CloudQuotas")
        do, kind = self._methods[method]

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return self._service.answer(method, request, do)
            except Refusal as error:
                context.abort_with_status(rpc_status.to_status(error.status))

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=kind.deserialize,
            response_serializer=_as_bytes,
        )


def _as_bytes(message: Any) -> bytes:
    if isinstance(message, operations_pb2.Operation):
        return message.SerializeToString()
    return type(message).serialize(message)
