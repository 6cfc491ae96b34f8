"""Project and zone: from flags or the configuration, the environment, gcloud's own settings.

In that order, as gcloud itself has it. gcloud's settings are read from its files, so that it need
neither run nor be installed.
"""

import configparser
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


def with_gcloud_settings(submit: SubmitSection) -> SubmitSection:
    """Returns the settings with project and zone filled in where they are known from elsewhere.

    ``project`` and ``zone`` of the section itself, which hold the flags too, come first.
    """
    changes = {}
    if submit.project is None and (project := find("project")):
        changes["project"] = project
    if submit.zone is None and (zone := find("zone")):
        changes["zone"] = (zone,)
    if not changes:
        return submit
    return SubmitSection.model_validate({**submit.model_dump(), **changes})


def find(setting: str) -> str | None:
    """Returns ``project`` or ``zone`` from the environment, else from gcloud's files."""
    for name in _ENVIRONMENT[setting]:
        if value := os.environ.get(name, "").strip():
            return value
    parser = configparser.RawConfigParser()
    try:
        parser.read(_active(), encoding="utf-8")
        value = parser.get(_SECTION[setting], setting, fallback="").strip()
    except (configparser.Error, UnicodeDecodeError, OSError):
        return None  # gcloud says what is wrong with its own files
    return value or None


def _active() -> Path:
    """Returns the file of gcloud's active configuration."""
    folder = os.environ.get("CLOUDSDK_CONFIG")
    root = Path(folder) if folder else Path.home() / ".config" / "gcloud"
    name = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME", "")
    if not name:
        try:
            name = (root / "active_config").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            name = ""
    return root / "configurations" / f"config_{name or 'default'}"
