"""The user's Google Cloud settings on this machine: project, zone and credentials.

Project and zone come from the first source that sets them: options or the configuration,
environment variables, gcloud's files. Reading gcloud's files needs no installed gcloud.
"""

import configparser
import os
from pathlib import Path
from typing import Final

from bert_jax.files.storage_retries import no_credentials
from bert_jax.launch.section import SubmitSection

# Setting: gcloud's section, and the environment variables in order of precedence.
_SOURCES: Final = {
    "project": ("core", ("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT")),
    "zone": ("compute", ("CLOUDSDK_COMPUTE_ZONE", "GOOGLE_CLOUD_ZONE")),
}


def with_gcloud_settings(submit: SubmitSection) -> SubmitSection:
    """Returns the settings; takes a missing project or zone from this machine."""
    changes = {}
    if submit.project is None and (project := find("project")):
        changes["project"] = project
    if submit.zone is None and (zone := find("zone")):
        changes["zone"] = (zone,)
    return SubmitSection.model_validate({**submit.model_dump(), **changes}) if changes else submit


def find(setting: str) -> str | None:
    """Returns ``project`` or ``zone`` from the environment or from gcloud's files."""
    section, variables = _SOURCES[setting]
    for name in variables:
        if value := os.environ.get(name, "").strip():
            return value
    parser = configparser.RawConfigParser()
    try:
        parser.read(_active_file(), encoding="utf-8")
        return parser.get(section, setting, fallback="").strip() or None
    except (configparser.Error, UnicodeDecodeError, OSError):
        return None  # ignore a damaged file, which gcloud itself reports


def _active_file() -> Path:
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


def require_credentials(path: str) -> None:
    """Raises NoCredentials if a path is in Cloud Storage and this machine has no credentials.

    Uses no network, so Google may still refuse the credentials. Ignores a missing client library.
    """
    if not path.startswith("gs://") or os.environ.get("STORAGE_EMULATOR_HOST"):
        return
    try:
        import google.auth
        import google.auth.exceptions
    except ImportError:
        return
    try:
        google.auth.default()
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise no_credentials(path) from error
