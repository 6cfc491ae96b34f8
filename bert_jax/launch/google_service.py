"""Sends requests to a Google service with timeouts and retries, and translates its errors.

Import it late: Google's clients take a second to load.
"""

import datetime
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import google.auth.exceptions as auth_errors
import grpc
from google.api_core import exceptions
from google.rpc import error_details_pb2

from bert_jax.errors import NoCredentials, UserError
from bert_jax.files.storage_retries import credentials_refused, reason_of
from bert_jax.launch.launcher import OutOfQuota, Unavailable, no_permission
from bert_jax.launch.request_retries import RequestLimits, persistently

# Predefined roles, for messages. tpu_setup/role.yaml is a custom role with fewer permissions.
_ROLES: Final = {
    "tpu": "roles/tpu.admin",
    "cloudquotas": "roles/cloudquotas.viewer",
    "iam": "roles/iam.serviceAccountUser on the service account of the hosts",
    "storage": "roles/storage.objectUser on the bucket",
}
_PERMISSION: Final = re.compile(r"\b([a-z]+)\.[a-zA-Z]+\.[a-zA-Z]+\b")
_DISABLED: Final = ("SERVICE_DISABLED", "API_DISABLED")
_RATE: Final = ("RATE_LIMIT_EXCEEDED", "rateLimitExceeded")
# Errors that are retried, in addition to all 5xx errors.
_RETRIED_ERRORS: Final = (exceptions.Aborted, exceptions.Cancelled, auth_errors.TransportError)
_Expected = tuple[type[exceptions.GoogleAPICallError], ...]


def make_client(client: Callable[[], Any]) -> Any:
    """Returns a new client, which looks up its credentials."""
    return client()


class GoogleService:
    """Sends requests to one service on behalf of one project."""

    def __init__(self, project: str, client: Any, *, pace: RequestLimits | None = None) -> None:
        """`client`: the client class of the service, such as `tpu_v2.TpuClient`."""
        self._project, self._make, self._pace = project, client, pace or RequestLimits()
        self._address: str = client.DEFAULT_ENDPOINT

    def send(self, method: str, request: Any, *, what: str, expected: _Expected = ()) -> Any:
        """Calls a method of the client and returns the answer.

        `what` names the request in messages. Raises Google's errors of the types in `expected`
        unchanged. Turns Google's other errors into NoCredentials, OutOfQuota, Unavailable, or
        UserError (no permission, API disabled, request refused).
        """
        values = {"request": request, "retry": None, "timeout": self._pace.timeout}
        try:
            return persistently(
                lambda: getattr(self._client, method)(**values),
                what=what,
                judge=lambda error: self._judge(error, what, expected),
                pace=self._pace,
            )
        except (NoCredentials, Unavailable):
            # The client caches its credentials. A new client reads them again, after a new login.
            self.__dict__.pop("_client", None)
            raise

    def pages(
        self, method: str, request: Any, *, what: str, expected: _Expected = ()
    ) -> Iterator[Any]:
        """Yields the pages of a list. Raises the same errors as `send`."""
        while True:
            page = self.send(method, request, what=what, expected=expected)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    @functools.cached_property
    def _client(self) -> Any:
        return make_client(self._make)

    def _judge(self, error: Exception, what: str, expected: _Expected) -> float | Exception:
        """Returns the seconds to wait before a retry, or the exception to raise."""
        if isinstance(error, expected):
            return error
        reason = reason_of(error)
        # TooManyRequests includes RESOURCE_EXHAUSTED.
        too_many = isinstance(error, exceptions.TooManyRequests)
        if isinstance(error, _RETRIED_ERRORS) or (too_many and _is_rate(error)):
            return _retry_after(error)
        if too_many:
            return OutOfQuota("cloud.quota", f"no quota: {reason}", place=what)
        if isinstance(error, auth_errors.GoogleAuthError | exceptions.Unauthenticated):
            return credentials_refused(self._address, reason)
        if isinstance(error, exceptions.Forbidden):
            return self._forbidden(error)
        if isinstance(error, exceptions.ClientError):
            return UserError("cloud.refused", f"request refused: {reason}", place=what)
        if isinstance(error, exceptions.GoogleAPIError):
            return _retry_after(error)
        return error

    def _forbidden(self, error: exceptions.GoogleAPICallError) -> UserError:
        reason, where = reason_of(error), f"project {self._project}"
        if error.reason in _DISABLED or "has not been used in project" in reason:
            return UserError(
                "gcp.api_disabled",
                f"{self._address} is disabled. Run gcloud services enable {self._address} "
                f"--project {self._project}.",
                place=where,
            )
        if error.reason == "BILLING_DISABLED":
            return UserError("gcp.billing", f"billing is disabled ({reason})", place=where)
        found = _PERMISSION.search(reason)
        role = _ROLES.get(found[1] if found else self._address.partition(".")[0], _ROLES["tpu"])
        return no_permission(where, reason, needed=role)


def _is_rate(error: exceptions.GoogleAPICallError) -> bool:
    """Returns whether an error means too many requests per time, not too little quota."""
    if error.reason in _RATE:
        return True
    kinds = {type(detail) for detail in error.details}
    return error_details_pb2.RetryInfo in kinds and error_details_pb2.QuotaFailure not in kinds


def _retry_after(error: Exception) -> float:
    """Returns the wait in seconds that the service asks for, or 0."""
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
