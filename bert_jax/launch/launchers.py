"""Chooses the launcher of a job."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bert_jax.errors import UserError, not_installed
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.section import SubmitSection


@contextlib.contextmanager
def cloud_clients() -> Iterator[None]:
    """Raises UserError if a module imported in the block needs a missing client library."""
    try:
        yield
    except ImportError as error:
        clients = "clients of Google Cloud and Kubernetes"
        raise not_installed(clients, "submit", extra="launch,gcp") from error


def launcher_for(section: SubmitSection) -> Launcher:
    """Returns the launcher for a resolved section.

    Raises UserError if its client library is not installed, or the project is not known.
    """
    # Late imports: Google's clients take a second to load.
    if section.on == ("local",):
        from bert_jax.launch.local_launcher import LocalLauncher

        return LocalLauncher()
    with cloud_clients():
        if section.launcher == "gke":
            from bert_jax.launch.gke_launcher import GkeJobSets

            return GkeJobSets(cluster=section.cluster, namespace=section.namespace)
        from bert_jax.launch.tpu_launcher import QueuedResources
    if section.project is None:
        remedy = "missing. Give a project, or run `gcloud config set project ID`."
        raise UserError("submit.project_missing", remedy, place="--project")
    return QueuedResources(section.project)


def known_launchers(section: SubmitSection, *, say: Callable[[str], None]) -> Iterator[Launcher]:
    """Yields the launchers that this machine can query; calls `say` for each skipped launcher."""
    yield launcher_for(SubmitSection(on=("local",)))
    configs = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    has_cluster = any(Path(path).is_file() for path in configs.split(os.pathsep))
    for name, known, missing in (
        ("queued-resources", section.project is not None, "--project is missing"),
        ("gke", has_cluster, "kubectl has no cluster"),
    ):
        if not known:
            say(f"{name}: not listed: {missing}")
            continue
        try:
            yield launcher_for(section.model_copy(update={"on": None, "launcher": name}))
        except UserError as error:
            say(f"{name}: not listed: {error}")
