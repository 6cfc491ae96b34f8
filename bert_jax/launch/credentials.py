"""Credentials for Google Cloud: looked for before anything waits for a network."""

import os

from bert_jax.errors import NoCredentials
from bert_jax.files.patience import LOGIN


def require_credentials(path: str) -> None:
    """Raises NoCredentials if a path is in Cloud Storage and this machine has no credentials.

    Whether Google accepts them is not checked. Without Google's client, whoever needs it says so.
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
        raise NoCredentials(f"{path}: no credentials for Google Cloud; {LOGIN}") from error
