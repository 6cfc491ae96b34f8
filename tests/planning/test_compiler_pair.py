"""Compile checks run with the pair of jax and libtpu that hosts install."""

import importlib.metadata
import sys

import pytest

from bert_jax.files.host_lock import host_lock
from tests.compiler_pair import check_pair, compiles_for_tpus

HOSTS = {name: host_lock("tpu").versions[name] for name in ("jax", "libtpu")}


@compiles_for_tpus
def test_only_the_hosts_pair_may_check_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    check_pair()
    version = importlib.metadata.version
    own = {name: version(name) for name in HOSTS}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: own.get(name) or version(name))
    own["libtpu"] = "0.0.51"  # newer than what jax requires: no host would install it
    with pytest.raises(AssertionError, match=r"0\.0\.51"):
        check_pair()
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["libtpu>=0; extra == 'tpu'"])
    own.update(HOSTS)
    check_pair()
    own["jax"] = "0.10.2"
    with pytest.raises(AssertionError, match=HOSTS["jax"]):
        check_pair()
