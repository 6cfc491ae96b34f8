"""JobSets on a GKE cluster, through the cluster's API."""

import datetime
import functools
import json
from collections.abc import Callable
from typing import Any, Final, cast

from bert_jax.errors import NoCredentials, UserError
from bert_jax.files.yaml_file import dump_yaml
from bert_jax.launch.job import JOB_LABEL, Attempt
from bert_jax.launch.jobset import DIRECTORY, GROUP, PLURAL, VERSION, jobset
from bert_jax.launch.launcher import (
    Existing,
    NotOurs,
    Observation,
    OutOfQuota,
    Owner,
    Request,
    State,
    Unavailable,
)
from bert_jax.launch.pace import NOT_INSTALLED, Again, Pace, persistently, until_gone

try:
    import kubernetes
    import urllib3.exceptions
    from kubernetes.client.exceptions import ApiException
except ImportError as error:
    raise UserError(NOT_INSTALLED) from error

_INSTALL: Final = (
    "kubectl apply --server-side -f "
    "https://github.com/kubernetes-sigs/jobset/releases/latest/download/manifests.yaml"
)
_PASSING: Final = (408, 409, 429)  # of 4xx; all else passes but these


class GkeJobSets:
    """A `Launcher` through a cluster that has JobSet.

    Any method but `render` raises UserError: no such cluster, no credentials, no permission.
    """

    def __init__(
        self, *, cluster: str | None = None, namespace: str = "default", pace: Pace | None = None
    ) -> None:
        """Opens no connection; without a cluster's name it is kubectl's current context."""
        self._cluster = cluster
        self._namespace = namespace
        self._pace = pace or Pace()

    def render(self, attempt: Attempt) -> list[Request]:
        """Returns the manifest."""
        what = f"JobSet {attempt.resource}, as {attempt.resource}.yaml"
        command = f"kubectl apply -f {attempt.resource}.yaml"
        return [Request(what, dump_yaml(jobset(attempt)), command)]

    def create(self, attempt: Attempt) -> None:
        """Applies the manifest."""
        body = jobset(attempt)
        what = f"JobSet {attempt.resource}"
        try:
            method = self._jobsets.create_namespaced_custom_object
            self._send(method, what, expected=(404, 409), body=body)
        except ApiException as error:
            if error.status == 404:
                raise self._no_jobset() from error
            found = self._get(attempt.resource)
            if found is None:
                raise Unavailable(f"{what}: one of that name has just been deleted") from error
            if not _is_ours(found, Owner.of(attempt)):
                raise NotOurs(
                    f"submit.name: {attempt.resource} exists in namespace {self._namespace} and "
                    f"is not of job {attempt.job.directory}; give the job another name"
                ) from error

    def observe(self, attempt: Attempt) -> Observation:
        """Returns how the JobSet is.

        One whose pods wait for longer than the job does has failed, or was taken back where they
        had run before: JobSet makes new ones, which wait anew.
        """
        found = self._get(attempt.resource)
        if found is None or not _is_ours(found, Owner.of(attempt)):
            return Observation(State.ABSENT)
        seen, waits_since = self._look(found)
        hours = attempt.job.wait_hours
        if waits_since is None or hours is None or self._pace.now() - waits_since <= hours * 3600:
            return seen
        ran = found.get("status", {}).get("restarts", 0) > 0
        state = State.SUSPENDED if ran else State.FAILED
        return Observation(state, f"no capacity within {hours:g} h: {seen.message}")

    def delete(self, attempt: Attempt) -> None:
        """Has the JobSet and its pods deleted, and waits until they are."""
        self._delete(attempt.resource, Owner.of(attempt))

    def remove(self, existing: Existing) -> None:
        """Deletes what `existing` has found, whoever made it."""
        namespace = existing.zone.rpartition("/")[2]
        GkeJobSets(cluster=self._cluster, namespace=namespace, pace=self._pace)._delete(
            existing.resource, existing.owner
        )

    def existing(self) -> list[Existing]:
        """Returns JobSets with our label in all namespaces, or in ours if others are not ours."""
        try:
            return [self._existing(item) for item in self._list()]
        except ApiException as error:  # 404
            raise self._no_jobset() from error

    def _list(self) -> list[dict[str, Any]]:
        what, ours = "list of JobSets", {"label_selector": JOB_LABEL}
        everywhere = {"group": GROUP, "version": VERSION, "plural": PLURAL, **ours}
        try:
            method = functools.partial(self._jobsets.list_cluster_custom_object, **everywhere)
            return self._call(method, what, expected=(404,))["items"]
        except UserError:
            method = self._jobsets.list_namespaced_custom_object
            return self._send(method, what, expected=(404,), **ours)["items"]

    def _existing(self, item: dict[str, Any]) -> Existing:
        metadata, state = item["metadata"], self._look(item)[0].state
        namespace = metadata.get("namespace", self._namespace)
        return Existing(
            job=metadata["labels"][JOB_LABEL],
            resource=metadata["name"],
            zone=f"{self._cluster or 'cluster'}/{namespace}",
            state=state,
            bills=state in (State.STARTING, State.ACTIVE, State.DELETING),
            directory=_directory(item),
        )

    def _no_jobset(self) -> UserError:
        return UserError(
            f"cluster {self._cluster or 'of the current context'}: it has no JobSet, or no "
            f"namespace {self._namespace}; install JobSet: {_INSTALL}"
        )

    @functools.cached_property
    def _api(self) -> kubernetes.client.ApiClient:
        settings = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_kube_config(context=self._context, client_configuration=settings)
        except kubernetes.config.ConfigException as error:
            raise UserError(
                f"Kubernetes: no configuration of a cluster ({error}); make one: "
                f"gcloud container clusters get-credentials {self._cluster or 'CLUSTER'}"
            ) from error
        settings.retries = False  # ours are the only ones
        return kubernetes.client.ApiClient(settings)

    @functools.cached_property
    def _jobsets(self) -> kubernetes.client.CustomObjectsApi:
        return kubernetes.client.CustomObjectsApi(self._api)

    @functools.cached_property
    def _context(self) -> str:
        """The context of the cluster: its name, or ``gke_PROJECT_ZONE_NAME``.

        Kept: a new client looks at the same cluster, whatever kubectl's current one is by then.
        """
        contexts, current = cast("Any", kubernetes.config.list_kube_config_contexts())
        if self._cluster is None:
            return current["name"]
        names = [context["name"] for context in contexts]
        fits = [name for name in names if name == self._cluster]
        fits = fits or [name for name in names if name.endswith(f"_{self._cluster}")]
        if len(fits) != 1:
            raise UserError(
                f'submit.cluster: found "{self._cluster}", allowed: one of kubectl\'s contexts: '
                f"{', '.join(names) or 'none'}; get it: gcloud container clusters "
                f"get-credentials {self._cluster}"
            )
        return fits[0]

    def _send(
        self, method: Callable[..., Any], what: str, *, expected: tuple[int, ...], **values: Any
    ) -> Any:
        place = {"group": GROUP, "version": VERSION, "namespace": self._namespace}
        method = functools.partial(method, **place, plural=PLURAL, **values)
        return self._call(method, what, expected=expected)

    def _call(
        self, method: Callable[..., Any], what: str, *, expected: tuple[int, ...] = ()
    ) -> Any:
        """Returns an answer. Raises ApiException with a status that is expected, and no other."""
        try:
            return persistently(
                lambda: method(_request_timeout=self._pace.timeout),
                what=what,
                judge=lambda error: self._judge(error, what, expected),
                pace=self._pace,
            )
        except (NoCredentials, Unavailable):
            for cached in ("_api", "_jobsets"):
                self.__dict__.pop(cached, None)  # that a user has logged in again, a new one sees
            raise

    def _judge(self, error: Exception, what: str, expected: tuple[int, ...]) -> Again | Exception:
        if isinstance(error, urllib3.exceptions.HTTPError):
            return Again()
        if not isinstance(error, ApiException) or error.status in expected:
            return error
        said, status = _message(error), error.status or 0  # 0: no answer that could be read
        if status in _PASSING or not 400 <= status < 500:
            after = (error.headers or {}).get("Retry-After", "")
            return Again(float(after) if str(after).isdecimal() else 0.0)
        if error.status == 401:
            return NoCredentials(f"{what}: credentials refused ({said}); run `gcloud auth login`")
        if error.status == 403 and "exceeded quota" in said:
            return OutOfQuota(f"{what}: {said}")
        if error.status == 403:
            return UserError(f"{what}: no permission ({said}); needed: roles/container.developer")
        return UserError(f"{what}: the cluster refuses it: {said}")

    def _get(self, name: str) -> dict[str, Any] | None:
        method = self._jobsets.get_namespaced_custom_object
        try:
            return self._send(method, f"JobSet {name}", expected=(404,), name=name)
        except ApiException:
            return None

    def _look(self, found: dict[str, Any]) -> tuple[Observation, float | None]:
        """Returns how a JobSet is, and of one that waits since when."""
        status = found.get("status", {})
        if found["metadata"].get("deletionTimestamp"):
            return Observation(State.DELETING), None
        if status.get("terminalState") == "Failed":
            return Observation(State.FAILED, _condition(status, "Failed")), None
        if status.get("terminalState") == "Completed":
            return Observation(State.ACTIVE, "its hosts have ended"), None
        wanted = found["spec"]["replicatedJobs"][0]["replicas"]
        ready = sum(jobs.get("ready", 0) for jobs in status.get("replicatedJobsStatus", []))
        if ready >= wanted:
            return Observation(State.ACTIVE), None
        waiting = self._unscheduled(found["metadata"])
        if waiting is None:
            return Observation(State.STARTING), None
        why, since = waiting
        return Observation(State.WAITING, why), since.timestamp()

    def _unscheduled(self, jobset: dict[str, Any]) -> tuple[str, datetime.datetime] | None:
        """Returns why a pod has no machine yet, and since when; None if all have one."""
        name = jobset["name"]
        pods = self._call(
            functools.partial(
                kubernetes.client.CoreV1Api(self._api).list_namespaced_pod,
                namespace=jobset.get("namespace", self._namespace),
                label_selector=f"jobset.sigs.k8s.io/jobset-name={name}",
            ),
            f"pods of {name}",
        ).items
        if not pods:
            made = datetime.datetime.fromisoformat(jobset["creationTimestamp"])
            return "its pods are not made yet", made
        for pod in pods:
            for condition in pod.status.conditions or []:
                if condition.type == "PodScheduled" and condition.status == "False":
                    return condition.message or "unschedulable", pod.metadata.creation_timestamp
        return None

    def _delete(self, name: str, owner: Owner) -> None:
        method = self._jobsets.delete_namespaced_custom_object

        def is_gone() -> bool:
            found = self._get(name)  # each time: what is gone may be followed by another job's
            if found is None or not _is_ours(found, owner):
                return True
            try:
                # In the foreground: it is there until its pods are gone.
                self._send(
                    method,
                    f"JobSet {name}",
                    expected=(404,),
                    name=name,
                    propagation_policy="Foreground",
                )
            except ApiException:
                return True
            return False

        until_gone(is_gone, what=f"JobSet {name}", pace=self._pace)


def _directory(found: dict[str, Any]) -> str:
    return (found["metadata"].get("annotations") or {}).get(DIRECTORY, "")


def _is_ours(found: dict[str, Any], owner: Owner) -> bool:
    return owner.has(found["metadata"].get("labels") or {}, _directory(found))


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError):
        return str(error.reason)


def _condition(status: dict[str, Any], kind: str) -> str:
    said = [c.get("message", "") for c in status.get("conditions", []) if c.get("type") == kind]
    return said[-1] if said else ""
