"""A cluster's API on loopback: JobSets and their pods, checked against the schemas."""

import contextlib
import dataclasses
import http.server
import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.launch.jobs import http_server

_PATH = re.compile(r"/apis/jobset\.x-k8s\.io/v1alpha2/namespaces/([^/]+)/jobsets(?:/([^/]+))?")
_EVERYWHERE = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
_PODS = re.compile(r"/api/v1/namespaces/[^/]+/pods")
KUBERNETES = "1.34"


def check_manifest(manifest: dict[str, Any]) -> None:
    """Raises if a JobSet, its Jobs or their pods violate the published schemas."""
    # Late import: it loads hundreds of classes, which most pytest-xdist processes do not need.
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    parsed = JobsetV1alpha2JobSet.from_dict(manifest)
    assert parsed is not None
    assert parsed.to_dict() == manifest  # no keys outside the schema
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


@dataclasses.dataclass
class Cluster:
    """A cluster's state and its failures.

    Attributes:
        jobsets: JobSets by name.
        unscheduled: the reason why pods get no machine, or None.
        pods_made: creation time of the pods.
        errors: responses to the next requests: status, headers, message.
        lingering: number of DELETE requests until a JobSet is gone.
        installed: whether JobSets are installed.
    """

    jobsets: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    unscheduled: str | None = None
    pods_made: str = "2026-01-01T00:00:00Z"
    errors: list[tuple[int, dict[str, str], str]] = dataclasses.field(default_factory=list)
    lingering: int = 2
    installed: bool = True
    requests: Counter[str] = dataclasses.field(default_factory=Counter)

    def answer(self, method: str, path: str, query: str, body: Any) -> tuple[int, Any]:
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
            if "kueue.x-k8s.io/queue-name" in body["metadata"]["labels"]:
                body["spec"]["suspend"] = True  # by Kueue's webhook
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
            if self.lingering <= 0:
                del self.jobsets[name]
                return 200, {"status": "Success"}
        return 200, self.jobsets[name]

    def _pods(self, query: str) -> list[dict[str, Any]]:
        name = urllib.parse.parse_qs(query)["labelSelector"][0].partition("=")[2]
        if name not in self.jobsets or self.jobsets[name]["spec"].get("suspend"):
            return []
        condition = {"type": "PodScheduled", "status": "True"}
        if self.unscheduled is not None:
            condition = {**condition, "status": "False", "message": self.unscheduled}
        metadata = {"name": f"{name}-slice-0-0", "creationTimestamp": self.pods_made}
        return [{"metadata": metadata, "status": {"conditions": [condition]}}]

    @contextlib.contextmanager
    def serving(self, folder: Path) -> Iterator[Path]:
        """Serves the API; yields the path of a kubeconfig for it."""
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

        with http_server(Handler) as port:
            yield _kubeconfig(folder / "kubeconfig", port)


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
