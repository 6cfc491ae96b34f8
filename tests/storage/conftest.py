"""Makes the bucket available to every test here."""

from tests.storage.cloud import _calm, _server, cloud  # noqa: F401
