"""Every test here may ask for the bucket."""

from tests.storage.cloud import _calm, _server, cloud  # noqa: F401
