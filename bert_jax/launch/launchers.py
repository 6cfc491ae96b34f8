"""Which launcher makes a job's machines. Google's clients are imported when they are used."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.local import LocalLauncher
from bert_jax.launch.section import SubmitSection


def launcher_for(section: SubmitSection) -> Launcher:
    """Returns the launcher of a job whose section is resolved: the project is known.

    Raises UserError if its client is not installed, or the project is not known.
    """
    if section.on == ("local",):
        return LocalLauncher()
    if section.launcher == "gke":
        from bert_jax.launch.gke import GkeJobSets

        return GkeJobSets(cluster=section.cluster, namespace=section.namespace)
    from bert_jax.launch.queued_resources import QueuedResources

    if section.project is None:
        raise UserError("--project: missing; Google Cloud's, in which machines are made")
    return QueuedResources(section.project)


def has_cluster() -> bool:
    """Whether there is a configuration of kubectl's; looked at without loading its client."""
    named = os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"
    return any(Path(path).is_file() for path in str(named).split(os.pathsep))


def known_launchers(section: SubmitSection, *, say: Callable[[str], None]) -> Iterator[Launcher]:
    """Yields every launcher whose machines can be listed from here, and says which cannot."""
    yield LocalLauncher()
    for name, known, missing in (
        ("queued-resources", section.project is not None, "--project is not known"),
        ("gke", has_cluster(), "kubectl's configuration names no cluster"),
    ):
        if not known:
            say(f"{name}: not listed: {missing}")
            continue
        try:
            yield launcher_for(section.model_copy(update={"on": None, "launcher": name}))
        except UserError as error:
            say(f"{name}: not listed: {error}")
