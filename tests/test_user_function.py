"""A configuration can only run functions in the user's own modules."""

import os
from pathlib import Path

import pytest

from bert_jax.pipelines.engines.beam import BeamSection
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.readers.tfds_dataset import describe
from bert_jax.user_function import TRUSTED, load_function, only_trusted
from tests.project import refuses


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_words.py").write_text(
        "from os import system\nfrom shutil import rmtree\ndef cut(text): return list(text)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_words"


def test_a_users_function_is_run(own: str) -> None:
    assert load_function(f"{own}:cut", key="k")("ab") == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "key", "module"),
    [
        ("os:system", "standard_library", "os"),
        ("subprocess:run", "standard_library", "subprocess"),
        ("posix:system", "standard_library", "posix"),
        ("builtins:eval", "standard_library", "builtins"),
        ("importlib.util:find_spec", "standard_library", "importlib"),
        ("numpy:load", "installed_package", "numpy"),
        ("yaml:unsafe_load", "installed_package", "yaml"),
        ("bert_jax.files.atomic:write_whole", "installed_package", "bert_jax"),
        ("own_words:system", "standard_library", os.system.__module__),
        ("own_words:rmtree", "standard_library", "shutil"),
        ("own_words:os.system", "spelling", None),
        ("..own_words:cut", "spelling", None),
        ("own words:cut", "spelling", None),
        ("__main__:x", "standard_library", "__main__"),
    ],
)
def test_a_function_of_another_package_is_refused(
    own: str, path: str, key: str, module: str | None
) -> None:
    del own
    place = "examples.cleaning.language_filter"
    with refuses(f"function.{key}", place=place, found=path, module=module):
        load_function(path, key=place)


def test_a_module_that_fails_on_import_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_words.py").write_text("1/0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refuses("function.import_failed", module="broken_words", reason="division by zero"):
        load_function("broken_words:cut", key="k")


def test_a_run_directory_needs_trust_for_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    only_trusted(None, key="k", source="run")
    only_trusted("jieba:lcut", key="k", source="run")
    with refuses("function.untrusted", place="run: k", trust=f"{TRUSTED}=own_words"):
        only_trusted("own_words:cut", key="k", source="run")
    monkeypatch.setenv(TRUSTED, "own_words")
    only_trusted("own_words:cut", key="k", source="run")


@pytest.mark.parametrize(
    "options",
    [
        ["--password=hunter2"],
        ["--flink_api_key", "hunter2"],
        ["--jdbc=postgres://me:hunter2@host/db"],
        ["--gcp_oauth_token=hunter2"],
    ],
)
def test_secrets_in_beam_options_are_refused_unprinted(options: list[str]) -> None:
    with refuses("beam.secret") as caught:
        BeamSection.model_validate({"options": options})
    assert "hunter2" not in str(caught.value)


def test_a_tfds_dataset_cannot_name_other_classes(tmp_path: Path) -> None:
    (tmp_path / "features.json").write_text('{"pythonClassName": "antigravity.Fly"}')
    with refuses("tfds.foreign_class", found="antigravity.Fly"):
        describe(str(tmp_path), SourcesSection(input=(str(tmp_path),)))
