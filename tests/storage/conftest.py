"""Provides the fixture `cloud` to the tests in this folder."""

from tests.storage.cloud import _calm, _server, cloud  # noqa: F401
