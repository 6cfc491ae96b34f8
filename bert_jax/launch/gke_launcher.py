"""Launcher for GKE: creates JobSets through the cluster's API."""

import datetime
import functools
import json
from collections.abc import Callable
from typing import Any, Final, cast

import kubernetes
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

from bert_jax.errors import NoCredentials, UserError, commas, first_line
from bert_jax.files.yaml_file import dump_yaml
from bert_jax.launch import launcher
from bert_jax.launch.gke_manifest import DIRECTORY, GROUP, PLURAL, QUEUE, VERSION, jobset
from bert_jax.launch.job import JOB_LABEL, Attempt
from bert_jax.launch.launcher import Existing, Observation, Owner, State
from bert_jax.launch.request_retries import RequestLimits, persistently, until_gone

_INSTALL: Final = (
    "kubectl apply --server-side -f "
    "https://github.com/kubernetes-sigs/jobset/releases/latest/download/manifests.yaml"
)
_RETRIED_STATUSES: Final = (408, 409, 429)  # 4xx statuses that are retried


class GkeJobSets:
    """A `Launcher` for a GKE cluster with JobSet.

    Methods other than `render` raise UserError if the cluster, credentials or a permission is
    missing.
    """

    def __init__(
        self,
        *,
        cluster: str | None = None,
        namespace: str = "default",
        pace: RequestLimits | None = None,
    ) -> None:
        """Opens no connection. If `cluster` is None, uses kubectl's current context."""
        self._cluster, self._namespace, self._pace = cluster, namespace, pace or RequestLimits()

    def render(self, attempt: Attempt) -> list[launcher.Request]:
        """Returns the manifest."""
        what = f"JobSet {attempt.resource}, as {attempt.resource}.yaml"
        command = f"kubectl apply -f {attempt.resource}.yaml"
        return [launcher.Request(what, dump_yaml(jobset(attempt)), command)]

    def create(self, attempt: Attempt) -> None:
        """Applies the manifest."""
        what, body = f"JobSet {attempt.resource}", jobset(attempt)
        try:
            self._send("create_namespaced", what, (404, 409), body=body)
        except ApiException as error:
            if error.status == 404:
                raise self._no_jobset() from error
            found = self._get(attempt.resource)
            owner = None if found is None else _owner(found)
            launcher.require_ours(attempt, owner, what, where=f"namespace {self._namespace}")

    def observe(self, attempt: Attempt) -> Observation:
        """Returns the state of the JobSet.

        If pods wait for capacity longer than the job's limit, returns FAILED. If these pods
        replace pods that ran, returns SUSPENDED instead.
        """
        found = self._get(attempt.resource)
        if found is None or not _owner(found).is_job(Owner.of(attempt)):
            return Observation(State.ABSENT)
        seen, hours = self._observation(found), attempt.job.wait_hours
        if seen.waits_since is None or hours is None:
            return seen
        if self._pace.now() - seen.waits_since <= hours * 3600:
            return seen
        ran = found.get("status", {}).get("restarts", 0) > 0
        state = State.SUSPENDED if ran else State.FAILED
        return Observation(state, f"no capacity within {hours:g} h: {seen.message}")

    def delete(self, attempt: Attempt) -> None:
        """Deletes the JobSet and its pods."""
        self._delete(attempt.resource, Owner.of(attempt))

    def remove(self, existing: Existing) -> None:
        """Deletes a JobSet that `existing()` returned, and its pods."""
        namespace = existing.zone.rpartition("/")[2]
        there = GkeJobSets(cluster=self._cluster, namespace=namespace, pace=self._pace)
        there._delete(existing.resource, existing.owner)

    def existing(self) -> list[Existing]:
        """Returns the JobSets with our label.

        If permission for all namespaces is missing, searches only `namespace`.
        """
        try:
            try:
                found = self._list("list_cluster")
            except UserError:
                found = self._list("list_namespaced")
        except ApiException as error:  # 404
            raise self._no_jobset() from error
        listed = []
        for item in found:
            metadata, state = item["metadata"], self._observation(item).state
            where = f"{self._cluster or 'cluster'}/{metadata.get('namespace', self._namespace)}"
            bills = state in (State.STARTING, State.ACTIVE, State.DELETING)
            listed.append(Existing(_owner(item), metadata["name"], where, state, bills))
        return listed

    def _list(self, method: str) -> list[dict[str, Any]]:
        return self._send(method, "list of JobSets", (404,), label_selector=JOB_LABEL)["items"]

    def _no_jobset(self) -> UserError:
        return UserError(
            "gke.no_jobset",
            f"no JobSet, or no namespace {self._namespace}. Install JobSet: {_INSTALL}",
            place=self._cluster or "kubectl's current context",
        )

    @functools.cached_property
    def _api(self) -> kubernetes.client.ApiClient:
        settings = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_kube_config(context=self._context, client_configuration=settings)
        except kubernetes.config.ConfigException as error:
            reason, remedy = first_line(error), "Use gcloud container clusters get-credentials."
            message = f"no cluster ({reason}). {remedy}"
            raise UserError("gke.no_cluster", message, place="kubectl") from error
        settings.retries = False  # `persistently` retries
        return kubernetes.client.ApiClient(settings)

    @functools.cached_property
    def _context(self) -> str:
        """Kubectl's context for the cluster, named ``NAME`` or ``gke_PROJECT_ZONE_NAME``.

        Cached: if kubectl's current context changes, later clients still use this cluster.
        """
        contexts, current = cast("Any", kubernetes.config.list_kube_config_contexts())
        if self._cluster is None:
            return current["name"]
        names = [context["name"] for context in contexts]
        fits = [name for name in names if name == self._cluster]
        fits = fits or [name for name in names if name.endswith(f"_{self._cluster}")]
        if len(fits) != 1:
            found, allowed = f'"{self._cluster}"', f"{commas(names)} (contexts of kubectl)"
            raise UserError.wrong("gke.cluster", found, allowed, place="submit.cluster")
        return fits[0]

    def _send(self, method: str, what: str, expected: tuple[int, ...], **values: Any) -> Any:
        """Calls a method on JobSets, such as ``create_namespaced`` or ``list_cluster``."""
        values |= {"group": GROUP, "version": VERSION, "plural": PLURAL}
        if method.endswith("_namespaced"):
            values["namespace"] = self._namespace
        jobsets = kubernetes.client.CustomObjectsApi(self._api)
        return self._call(getattr(jobsets, f"{method}_custom_object"), what, expected, **values)

    def _call(
        self, method: Callable[..., Any], what: str, expected: tuple[int, ...], **values: Any
    ) -> Any:
        """Calls a method with retries. Raises ApiException only if its status is in `expected`."""
        try:
            return persistently(
                lambda: method(_request_timeout=self._pace.timeout, **values),
                what=what,
                judge=lambda error: _judge(error, what, expected),
                pace=self._pace,
            )
        except (NoCredentials, launcher.Unavailable):
            # The client caches its credentials. A new client reads them again, after a new login.
            self.__dict__.pop("_api", None)
            raise

    def _get(self, name: str) -> dict[str, Any] | None:
        try:
            return self._send("get_namespaced", f"JobSet {name}", (404,), name=name)
        except ApiException:
            return None

    def _observation(self, found: dict[str, Any]) -> Observation:
        status = found.get("status", {})
        if found["metadata"].get("deletionTimestamp"):
            return Observation(State.DELETING)
        if status.get("terminalState") == "Failed":
            conditions = status.get("conditions", [])
            why = [item.get("message", "") for item in conditions if item.get("type") == "Failed"]
            return Observation(State.FAILED, why[-1] if why else "")
        if status.get("terminalState") == "Completed":
            return Observation(State.ACTIVE, "the hosts have ended")
        if found["spec"].get("suspend"):
            return _suspended(found)
        wanted = found["spec"]["replicatedJobs"][0]["replicas"]
        ready = sum(jobs.get("ready", 0) for jobs in status.get("replicatedJobsStatus", []))
        if ready >= wanted:
            return Observation(State.ACTIVE)
        return self._scheduling(found["metadata"])

    def _scheduling(self, jobset: dict[str, Any]) -> Observation:
        """Returns WAITING while a pod is missing or not scheduled, otherwise STARTING."""
        pods = self._call(
            kubernetes.client.CoreV1Api(self._api).list_namespaced_pod,
            f"pods of {jobset['name']}",
            (),
            namespace=jobset.get("namespace", self._namespace),
            label_selector=f"jobset.sigs.k8s.io/jobset-name={jobset['name']}",
        ).items
        if not pods:
            made = _seconds(jobset["creationTimestamp"])
            return Observation(State.WAITING, "pods not created yet", made)
        for pod in pods:
            for condition in pod.status.conditions or []:
                if condition.type == "PodScheduled" and condition.status == "False":
                    since = pod.metadata.creation_timestamp.timestamp()
                    why = condition.message or "unschedulable"
                    return Observation(State.WAITING, why, since)
        return Observation(State.STARTING)

    def _delete(self, name: str, owner: Owner) -> None:
        def is_gone() -> bool:
            found = self._get(name)  # on each call: another job may take the free name
            if found is None or not _owner(found).is_job(owner):
                return True
            # Foreground deletion: the JobSet exists until its pods are gone.
            values = {"name": name, "propagation_policy": "Foreground"}
            try:
                self._send("delete_namespaced", f"JobSet {name}", (404,), **values)
            except ApiException:
                return True
            return False

        until_gone(is_gone, what=f"JobSet {name}", pace=self._pace)


def _suspended(found: dict[str, Any]) -> Observation:
    """Returns the observation of a JobSet without pods that Kueue has not admitted, or evicted."""
    since = found["metadata"]["creationTimestamp"]
    for condition in found.get("status", {}).get("conditions", []):
        if condition["type"] == "Suspended" and condition["status"] == "True":
            since = condition["lastTransitionTime"]
    queue = (found["metadata"].get("labels") or {}).get(QUEUE)
    why = f"suspended in Kueue's queue {queue}" if queue else "suspended"
    return Observation(State.WAITING, why, _seconds(since))


def _seconds(timestamp: str) -> float:
    """Returns Kubernetes' ``2026-01-01T00:00:00Z`` in seconds since 1970."""
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def _owner(found: dict[str, Any]) -> Owner:
    metadata = found["metadata"]
    job = (metadata.get("labels") or {}).get(JOB_LABEL, "")
    return Owner(job, (metadata.get("annotations") or {}).get(DIRECTORY, ""))


def _judge(error: Exception, what: str, expected: tuple[int, ...]) -> float | Exception:
    """Returns the seconds to wait before a retry, or the exception to raise."""
    if isinstance(error, urllib3.exceptions.HTTPError):
        return 0.0
    if not isinstance(error, ApiException) or error.status in expected:
        return error
    try:
        reason = str(json.loads(error.body or "")["message"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError):
        reason = str(error.reason)
    status = error.status or 0  # 0: unreadable answer
    if status in _RETRIED_STATUSES or not 400 <= status < 500:
        after = (error.headers or {}).get("Retry-After", "")
        return float(after) if str(after).isdecimal() else 0.0
    if status == 401:
        return NoCredentials(
            "gke.credentials",
            f"credentials refused ({reason}). Run `gcloud auth login`.",
            place=what,
        )
    if status == 403 and "exceeded quota" in reason:
        return launcher.OutOfQuota("cloud.quota", f"no quota: {reason}", place=what)
    if status == 403:
        return launcher.no_permission(what, reason, needed="roles/container.developer")
    return UserError("cloud.refused", f"request refused: {reason}", place=what)
