"""Requests to Google Cloud: time-outs, retries, and its errors as ours.

Importing this loads Google's clients: whoever launches something does so when it is needed.
"""

import dataclasses
import datetime
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from bert_jax.errors import NoCredentials, UserError
from bert_jax.files.patience import LOGIN, reason_of
from bert_jax.launch.launcher import OutOfQuota
from bert_jax.launch.pace import NOT_INSTALLED, Again, Pace, persistently

try:
    import google.auth.exceptions as auth_errors
    import grpc
    from google.api_core import exceptions
    from google.rpc import error_details_pb2
except ImportError as error:
    raise UserError(NOT_INSTALLED) from error

Answer = TypeVar("Answer")

EMULATOR: Final = "BERT_JAX_CLOUD_EMULATOR"
"""``127.0.0.1:PORT`` of a stand-in for Google's services on this machine, without encryption."""

# The least that does it; tpu_setup/README.md has the same as a custom role.
_ROLES: Final = {
    "tpu": "roles/tpu.admin",
    "cloudquotas": "roles/cloudquotas.viewer",
    "iam": "roles/iam.serviceAccountUser on the service account of the hosts",
    "storage": "roles/storage.objectUser on the bucket",
}
_PERMISSION: Final = re.compile(r"\b([a-z]+)\.[a-zA-Z]+\.[a-zA-Z]+\b")
_DISABLED: Final = ("SERVICE_DISABLED", "API_DISABLED")
_RATE: Final = ("RATE_LIMIT_EXCEEDED", "rateLimitExceeded")
# 4xx all the same; every 5xx passes.
_PASSING: Final = (exceptions.Aborted, exceptions.Cancelled, auth_errors.TransportError)
_Expected = tuple[type[exceptions.GoogleAPICallError], ...]


@dataclasses.dataclass(frozen=True)
class GoogleCalls:
    """Sends requests of one service for one project."""

    project: str  # for messages
    service: str  # ``tpu``: the first part of its address and of its permissions
    pace: Pace  # of tries

    def send(
        self,
        method: Callable[..., Answer],
        request: Any,
        *,
        what: str,
        expected: _Expected = (),
    ) -> Answer:
        """Returns what a method of a client answers; `what` it asks for is for messages.

        What is `expected` of Google's errors is raised as it is. Every other one is one of these.

        Raises:
            NoCredentials: there are none, or they are not taken.
            UserError: no permission, the API is off, a request that is refused.
            OutOfQuota: no quota.
            Unavailable: no answer, or none but errors of the service's own.
        """
        return persistently(
            lambda: method(request=request, retry=None, timeout=self.pace.timeout),
            what=what,
            judge=lambda error: error if isinstance(error, expected) else self._judge(error, what),
            pace=self.pace,
        )

    def client(self, make: Callable[..., Answer], transport: Callable[..., Any]) -> Answer:
        """Returns a client, which finds its credentials when it is made; of the stand-in, if any.

        Raises NoCredentials if there are none, UserError if the stand-in's address is not this
        machine's.
        """
        if (channel := _emulated_channel()) is not None:
            return make(transport=transport(channel=channel))
        address = f"{self.service}.googleapis.com"
        return persistently(
            make, what=address, judge=lambda error: self._judge(error, address), pace=self.pace
        )

    def pages(
        self,
        method: Callable[..., Answer],
        request: Any,
        *,
        what: str,
        expected: _Expected = (),
    ) -> Iterator[Answer]:
        """Yields the pages of a list, as `send` returns them."""
        while True:
            page: Any = self.send(method, request, what=what, expected=expected)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _judge(self, error: Exception, what: str) -> Again | Exception:
        if isinstance(error, _PASSING):
            return Again(_retry_after(error))
        if isinstance(error, exceptions.TooManyRequests):  # RESOURCE_EXHAUSTED too
            if _is_rate(error):
                return Again(_retry_after(error))
            return OutOfQuota(f"{what}: {reason_of(error)}")
        if isinstance(error, auth_errors.GoogleAuthError | exceptions.Unauthenticated):
            return NoCredentials(
                f"{self.service}.googleapis.com: no credentials ({reason_of(error)}); {LOGIN}"
            )
        if isinstance(error, exceptions.Forbidden):
            return UserError(self._forbidden(error))
        if isinstance(error, exceptions.ClientError):
            return UserError(f"{what}: the service refuses the request: {reason_of(error)}")
        if isinstance(error, exceptions.GoogleAPIError):
            return Again(_retry_after(error))
        return error

    def _forbidden(self, error: exceptions.GoogleAPICallError) -> str:
        reason = reason_of(error)
        where = f"project {self.project}"
        if error.reason in _DISABLED or "has not been used in project" in reason:
            return (
                f"{where}: {self.service}.googleapis.com is not enabled; enable it: "
                f"gcloud services enable {self.service}.googleapis.com --project {self.project}"
            )
        if error.reason == "BILLING_DISABLED":
            return f"{where}: billing is not enabled ({reason})"
        found = _PERMISSION.search(reason)
        role = _ROLES.get(found[1] if found else self.service, _ROLES["tpu"])
        return f"{where}: no permission ({reason}); needed: {role}"


def _emulated_channel() -> grpc.Channel | None:
    """Returns a connection to the services' stand-in on this machine, None if there is none."""
    address = os.environ.get(EMULATOR)
    if not address:
        return None
    # What is sent there is not encrypted.
    if address.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        raise UserError(f'{EMULATOR}: found "{address}", allowed: 127.0.0.1:PORT')
    return grpc.insecure_channel(address)


def _is_rate(error: exceptions.GoogleAPICallError) -> bool:
    """Whether too much was asked per minute, and not for more than there may be."""
    if error.reason in _RATE:
        return True
    kinds = {type(detail) for detail in error.details}
    return error_details_pb2.RetryInfo in kinds and error_details_pb2.QuotaFailure not in kinds


def _retry_after(error: Exception) -> float:
    """Returns the seconds for which a service asks not to be asked, 0 if it names none."""
    if not isinstance(error, exceptions.GoogleAPICallError):
        return 0.0
    for detail in error.details:
        if isinstance(detail, error_details_pb2.RetryInfo):
            return detail.retry_delay.ToTimedelta() / datetime.timedelta(seconds=1)
    answer = error.response
    metadata = answer.trailing_metadata() if isinstance(answer, grpc.Call) else None
    for key, value in metadata or ():
        if key == "retry-after" and str(value).isdecimal():
            return float(value)
    return 0.0
