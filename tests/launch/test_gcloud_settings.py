"""Project and zone come from gcloud's own settings."""

from pathlib import Path

import pytest

from bert_jax.launch.gcloud import find, with_gcloud_settings
from bert_jax.launch.section import SubmitSection


@pytest.fixture(autouse=True)
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """gcloud's folder with two configurations (`work` is active), and a clean environment."""
    for name in ("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_COMPUTE_ZONE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GOOGLE_CLOUD_ZONE", "CLOUDSDK_ACTIVE_CONFIG_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    (tmp_path / "configurations").mkdir()
    (tmp_path / "active_config").write_text("work\n")
    files = tmp_path / "configurations"
    (files / "config_work").write_text("[core]\nproject = at-work\n[compute]\nzone = us-west4-a\n")
    (files / "config_home").write_text("[core]\nproject = 50%-at-home\naccount = a@b\n")
    return tmp_path


def test_the_active_configuration_of_gcloud_is_read() -> None:
    settings = with_gcloud_settings(SubmitSection())
    assert (settings.project, settings.zone) == ("at-work", ("us-west4-a",))


def test_another_configuration_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_ACTIVE_CONFIG_NAME", "home")
    assert find("project") == "50%-at-home"
    assert find("zone") is None


def test_precedence_is_section_environment_gcloud(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-library")
    assert with_gcloud_settings(SubmitSection()).project == "from-library"
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "from-gcloud")
    assert find("project") == "from-gcloud"
    settings = with_gcloud_settings(SubmitSection(project="mine", zone=("a-b", "c-d")))
    assert (settings.project, settings.zone) == ("mine", ("a-b", "c-d"))


def test_without_gcloud_there_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "nowhere"))
    assert with_gcloud_settings(SubmitSection()) == SubmitSection()
    (tmp_path / "configurations" / "config_work").write_bytes(b"no section\n\xff")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    assert find("project") is None
