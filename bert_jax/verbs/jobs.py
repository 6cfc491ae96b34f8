"""`bert-jax jobs`: what exists and bills, whoever made it."""

import os
from collections.abc import Sequence

from bert_jax.launch.gcloud_settings import with_gcloud_settings
from bert_jax.launch.job import BUCKET
from bert_jax.launch.launchers import known_launchers
from bert_jax.launch.orphans import Found, find_existing
from bert_jax.launch.section import SubmitSection
from bert_jax.launch.watching import Confirm, Say


def jobs(
    section: SubmitSection | None = None,
    *,
    stop_orphans: bool = False,
    confirm: Confirm | None = None,
    say: Say = print,
) -> list[Found]:
    """Returns all machines that exist for jobs: on this machine, and in the project's zones.

    ``[found.existing.resource for found in jobs()] -> ["base-2"]``

    Args:
        section: says project, zones, cluster and bucket; None for the environment's.
        stop_orphans: delete those that nobody watches and nobody needs: their job is over, their
            machines were taken back, or their hosts are silent.
        confirm: asks before each deletion; None: every answer is yes.
        say: called with each line of news.

    Raises:
        UserError, RunStopped: what was to be deleted cannot be.
    """
    section = with_gcloud_settings(section or SubmitSection())
    bucket = section.bucket or os.environ.get(BUCKET)
    found = find_existing(known_launchers(section, say=say), bucket=bucket, say=say)
    if not stop_orphans:
        return found
    return [each for each in found if not _stopped(each, confirm, say)]


def _stopped(found: Found, confirm: Confirm | None, say: Say) -> bool:
    if not found.orphan:
        return False
    name = found.existing.resource
    if confirm is not None and not confirm(f"Delete {name} ({found.orphan})?"):
        return False
    found.launcher.remove(found.existing)
    say(f"{name}: deleted ({found.orphan})")
    return True


def describe_jobs(found: Sequence[Found]) -> list[str]:
    """Returns a line for each, those that bill first."""
    if not found:
        return ["nothing exists"]
    lines = []
    for each in sorted(found, key=lambda each: not each.existing.bills):
        existing = each.existing
        bills = "bills" if existing.bills else "bills nothing"
        what = f"an orphan: {each.orphan}" if each.orphan else each.note
        where = f", {existing.directory}" if existing.directory else ""
        is_at = f"{existing.resource} in {existing.zone}: {existing.state.value}"
        lines.append(f"{is_at}, {bills}, {what}{where}")
    return lines
