"""A cluster's API on loopback: JobSets and their pods, refused where the schemas refuse them.

With `Pods`, a JobSet goes on each time that it is looked at, as JobSet's controller has it: its
pods start together when they are scheduled; a pod that fails is looked up in the pod failure
policy, and either fails the JobSet or starts all pods anew, as often as `maxRestarts` allows.
"""

import contextlib
import dataclasses
import http.server
import json
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import kubernetes_validate
import yaml

_PATH = re.compile(r"/apis/jobset\.x-k8s\.io/v1alpha2/namespaces/([^/]+)/jobsets(?:/([^/]+))?")
_EVERYWHERE = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
_PODS = re.compile(r"/api/v1/namespaces/[^/]+/pods")
KUBERNETES = "1.34"


def check_manifest(manifest: dict[str, Any]) -> None:
    """Raises where a JobSet, its Jobs or their pods are not as the published schemas have them."""
    # Hundreds of classes, for the one process of pytest-xdist that asks.
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    parsed = JobsetV1alpha2JobSet.from_dict(manifest)
    assert parsed is not None
    assert parsed.to_dict() == manifest  # nothing that the schema does not know
    for replicated in manifest["spec"]["replicatedJobs"]:
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": replicated["name"]},
            **replicated["template"],
        }
        kubernetes_validate.validate(job, KUBERNETES, strict=True)
        pod = {**job["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


class Pods(Protocol):
    """What runs the containers of a JobSet."""

    def start(self, name: str, environments: Sequence[Mapping[str, str]]) -> None:
        """Starts a JobSet's pods, each with its environment."""

    def exit_codes(self, name: str) -> Sequence[int | None]:
        """Returns how each has ended; None: it runs."""

    def stop(self, name: str) -> None:
        """Ends those that run."""


@dataclasses.dataclass
class Cluster:
    """What it holds, and how it fails.

    Attributes:
        jobsets: by name.
        unscheduled: why no pod gets a machine; None: all do.
        pods_made: when.
        pods_missing: with which message a list of pods is answered 404; None: it is not.
        errors: status, headers and message of the next answers.
        lingering: how often a JobSet that is deleted is still there.
        installed: whether it knows JobSets.
        pods: that run; None: a test writes each status itself.
    """

    jobsets: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    unscheduled: str | None = None
    pods_made: str = "2026-01-01T00:00:00Z"
    pods_missing: str | None = None
    errors: list[tuple[int, dict[str, str], str]] = dataclasses.field(default_factory=list)
    lingering: int = 2
    installed: bool = True
    pods: Pods | None = None
    running: set[str] = dataclasses.field(default_factory=set)
    requests: Counter[str] = dataclasses.field(default_factory=Counter)

    def answer(self, method: str, path: str, query: str, body: Any) -> tuple[int, Any]:
        """Returns status and body."""
        if _PODS.fullmatch(path) and self.pods_missing is not None:
            return 404, {"message": self.pods_missing}
        if _PODS.fullmatch(path):
            return 200, {"kind": "PodList", "apiVersion": "v1", "items": self._pods(query)}
        found = _PATH.fullmatch(path)
        if (found is None and path != _EVERYWHERE) or not self.installed:
            return 404, {"message": "the server could not find the requested resource"}
        name = found[2] if found is not None else None
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.jobsets:
                return 409, {"message": f'jobsets "{name}" already exists'}
            check_manifest(body)
            body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            self.jobsets[name] = body
            return 201, body
        if name is None:
            selector = urllib.parse.parse_qs(query)["labelSelector"][0]
            items = [
                jobset
                for jobset in self.jobsets.values()
                if selector in jobset["metadata"]["labels"]
                and (found is None or jobset["metadata"]["namespace"] == found[1])
            ]
            return 200, {"items": items}
        if name not in self.jobsets:
            return 404, {"message": f'jobsets "{name}" not found'}
        if method == "DELETE":
            self.jobsets[name]["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
            self.lingering -= 1
            if self.pods is not None and name in self.running:
                self.running.discard(name)
                self.pods.stop(name)
            if self.lingering <= 0:
                del self.jobsets[name]
                return 200, {"status": "Success"}
        elif self.pods is not None:
            self._advance(self.jobsets[name], self.pods)
        return 200, self.jobsets[name]

    def _advance(self, jobset: dict[str, Any], pods: Pods) -> None:
        name, spec = jobset["metadata"]["name"], jobset["spec"]
        status = jobset.setdefault("status", {"restarts": 0})
        ended = "terminalState" in status or "deletionTimestamp" in jobset["metadata"]
        if ended or self.unscheduled is not None:
            return
        ready = status["replicatedJobsStatus"] = [{"name": "slice", "ready": 0}]
        if name not in self.running:
            self.running.add(name)
            pods.start(name, environments(jobset))
            return
        codes = pods.exit_codes(name)
        if all(code == 0 for code in codes):
            status["terminalState"] = "Completed"
        elif not (failed := [code for code in codes if code]):
            ready[0]["ready"] = spec["replicatedJobs"][0]["replicas"]
        else:
            self.running.discard(name)
            pods.stop(name)
            (rule,) = _job(jobset)["podFailurePolicy"]["rules"]
            for_good = failed[0] in rule["onExitCodes"]["values"]
            if for_good or status["restarts"] == spec["failurePolicy"]["maxRestarts"]:
                why = "PodFailurePolicy" if for_good else "ReachedMaxRestarts"
                status["terminalState"] = "Failed"
                status["conditions"] = [{"type": "Failed", "message": f"{why}: exit {failed[0]}"}]
            else:
                status["restarts"] += 1

    def _pods(self, query: str) -> list[dict[str, Any]]:
        name = urllib.parse.parse_qs(query)["labelSelector"][0].partition("=")[2]
        if name not in self.jobsets:
            return []
        condition = {"type": "PodScheduled", "status": "True"}
        if self.unscheduled is not None:
            condition = {**condition, "status": "False", "message": self.unscheduled}
        metadata = {"name": f"{name}-slice-0-0", "creationTimestamp": self.pods_made}
        return [{"metadata": metadata, "status": {"conditions": [condition]}}]

    @contextlib.contextmanager
    def serving(self, folder: Path) -> Iterator[Path]:
        """Gives a file for kubectl, and our client, with which they come here."""
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _do(self) -> None:
                address = urllib.parse.urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                cluster.requests[self.command] += 1
                headers: dict[str, str] = {}
                if cluster.errors:
                    status, headers, message = cluster.errors.pop(0)
                    answer: Any = {"kind": "Status", "message": message}
                else:
                    status, answer = cluster.answer(self.command, address.path, address.query, body)
                raw = json.dumps(answer).encode()
                self.send_response(status)
                headers |= {"Content-Type": "application/json", "Content-Length": str(len(raw))}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_DELETE = _do

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield _kubeconfig(folder / "kubeconfig", server.server_address[1])
        finally:
            server.shutdown()
            server.server_close()


def _job(jobset: dict[str, Any]) -> dict[str, Any]:
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]


def environments(jobset: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the environment of each pod: the manifest's, and what GKE and Kubernetes add."""
    hosts = _job(jobset)["parallelism"]
    found = []
    for index in range(jobset["spec"]["replicatedJobs"][0]["replicas"]):
        for worker in range(hosts):
            found.append(
                {
                    "TPU_WORKER_ID": str(worker),
                    "TPU_WORKER_HOSTNAMES": ",".join(f"host-{at}" for at in range(hosts)),
                    "JOB_COMPLETION_INDEX": str(worker),
                }
            )
            for variable in _job(jobset)["template"]["spec"]["containers"][0]["env"]:
                value = variable.get("value", str(index))  # the field is the job's index
                found[-1][variable["name"]] = value.replace("$$", "$")
    return found


def _kubeconfig(path: Path, port: int) -> Path:
    context = "gke_test-project_us-west4-a_pool"
    values = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": "pool", "user": "me"}}],
        "clusters": [{"name": "pool", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "me", "user": {}}],
    }
    path.write_text(yaml.safe_dump(values))
    return path
