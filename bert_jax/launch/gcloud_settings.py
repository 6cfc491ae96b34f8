"""Project and zone: from flags or the configuration, the environment, gcloud's own settings.

In that order, as gcloud itself has it. gcloud's settings are read from its files, so that it need
neither run nor be installed.
"""

from __future__ import annotations

import configparser
import dataclasses
import os
from pathlib import Path
from typing import Final

from bert_jax.launch.section import SubmitSection

# The first that is set counts: gcloud's own before those of its libraries.
_ENVIRONMENT: Final = {
    "project": ("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT"),
    "zone": ("CLOUDSDK_COMPUTE_ZONE", "GOOGLE_CLOUD_ZONE"),
}
_SECTION: Final = {"project": "core", "zone": "compute"}


@dataclasses.dataclass(frozen=True)
class Found:
    """A setting and where it comes from."""

    value: str | None  # None: it is set nowhere
    source: str  # for eyes: ``submit.project``, ``CLOUDSDK_CORE_PROJECT``, ``gcloud (default)``


def with_gcloud_settings(submit: SubmitSection) -> SubmitSection:
    """Returns the settings with project and zone filled in where they are known from elsewhere.

    ``project`` and ``zone`` of the section itself, which hold the flags too, come first.
    """
    changes = {}
    if submit.project is None and (project := find("project").value):
        changes["project"] = project
    if submit.zone is None and (zone := find("zone").value):
        changes["zone"] = (zone,)
    if not changes:
        return submit
    return SubmitSection.model_validate({**submit.model_dump(), **changes})


def find(setting: str) -> Found:
    """Returns ``project`` or ``zone`` from the environment, else from gcloud's files."""
    for name in _ENVIRONMENT[setting]:
        if value := os.environ.get(name, "").strip():
            return Found(value, name)
    name, path = _active()
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
        value = parser.get(_SECTION[setting], setting, fallback="").strip()
    except (configparser.Error, UnicodeDecodeError, OSError):
        value = ""  # gcloud says what is wrong with its own files
    return Found(value or None, f"gcloud ({name})" if value else "nowhere")


def _active() -> tuple[str, Path]:
    """Returns name and file of gcloud's active configuration."""
    folder = os.environ.get("CLOUDSDK_CONFIG")
    root = Path(folder) if folder else Path.home() / ".config" / "gcloud"
    name = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME", "")
    if not name:
        try:
            name = (root / "active_config").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            name = ""
    name = name or "default"
    return name, root / "configurations" / f"config_{name}"
