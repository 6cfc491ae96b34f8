"""A configuration can run functions of the user's modules only."""

from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.pipelines.engines.beam import BeamSection
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.readers.tfds_dataset import describe
from bert_jax.user_function import TRUSTED, load_function, only_trusted


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
    ("path", "message"),
    [
        ("os:system", "os belongs to Python's standard library"),
        ("subprocess:run", "Python's standard library"),
        ("posix:system", "Python's standard library"),
        ("builtins:eval", "Python's standard library"),
        ("importlib.util:find_spec", "Python's standard library"),
        ("numpy:load", "numpy belongs to an installed package"),
        ("yaml:unsafe_load", "an installed package"),
        ("bert_jax.files.atomic:write_whole", "an installed package"),
        ("own_words:system", "Python's standard library"),
        ("own_words:rmtree", "Python's standard library"),
        ("own_words:os.system", "allowed: module:function"),
        ("..own_words:cut", "allowed: module:function"),
        ("own words:cut", "allowed: module:function"),
        ("__main__:x", "Python's standard library"),
    ],
)
def test_a_function_of_another_package_is_refused(own: str, path: str, message: str) -> None:
    del own
    with pytest.raises(UserError, match=message):
        load_function(path, key="examples.cleaning.language_filter")


def test_a_module_that_fails_on_import_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_words.py").write_text("1/0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"cannot be imported \(division by zero\)"):
        load_function("broken_words:cut", key="k")


def test_a_run_directory_needs_trust_for_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    only_trusted(None, key="k", source="run")
    only_trusted("jieba:lcut", key="k", source="run")
    with pytest.raises(UserError, match=f"run: k: .* which would run code.*{TRUSTED}=own_words"):
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
    with pytest.raises(UserError, match="found a secret in") as caught:
        BeamSection.model_validate({"options": options})
    assert "hunter2" not in str(caught.value)


def test_a_tfds_dataset_cannot_name_other_classes(tmp_path: Path) -> None:
    (tmp_path / "features.json").write_text('{"pythonClassName": "antigravity.Fly"}')
    with pytest.raises(UserError, match=r"found the class antigravity\.Fly, allowed"):
        describe(str(tmp_path), SourcesSection(input=(str(tmp_path),)))
