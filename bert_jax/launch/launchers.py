"""Which launcher makes a job's machines. Google's clients are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable

from bert_jax.errors import UserError
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.local import LocalLauncher
from bert_jax.launch.section import SubmitSection


def launcher_for(section: SubmitSection) -> Launcher:
    """Returns the launcher of a job.

    Args:
        section: resolved: project and zones are known.

    Raises:
        UserError: its client is not installed, or there are no credentials.
    """
    if section.on == ("local",):
        return LocalLauncher()
    if section.launcher == "gke":
        raise UserError("submit.launcher: gke is not here yet; allowed: queued-resources")
    from bert_jax.launch.queued_resources import QueuedResources

    return QueuedResources(_project(section))


def known_launchers(section: SubmitSection, *, say: Callable[[str], None]) -> list[Launcher]:
    """Returns every launcher whose machines can be listed from here.

    Args:
        section: as far as it is known.
        say: called with a line on each that cannot.
    """
    found: list[Launcher] = [LocalLauncher()]
    if section.project is None:
        say("queued resources are not listed: --project is not known")
        return found
    from bert_jax.launch.queued_resources import QueuedResources

    return [*found, QueuedResources(section.project)]


def _project(section: SubmitSection) -> str:
    if section.project is None:
        raise UserError("--project: missing; Google Cloud's, in which machines are made")
    return section.project
