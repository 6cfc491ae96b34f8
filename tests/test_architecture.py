import ast
import contextlib
import io
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parent.parent
# The search does not follow links from bert_jax/ to top-level folders.
SOURCES = sorted(
    path for package in ("bert_jax", "pipelines") for path in (ROOT / package).rglob("*.py")
)
OUTSIDE_PARALLEL = [path for path in SOURCES if path.parent.name != "parallel"]


def test_packages_import_only_lower_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = lint_imports(config_filename="setup.cfg", no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, out.getvalue()


def named(path: Path) -> set[str]:
    """Returns the names in a file: modules, imported names and attributes."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.name.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return names


def test_only_parallel_shards_arrays() -> None:
    forbidden = {"PartitionSpec", "MESH_AXES", "DATA", "FSDP", "TENSOR"}
    assert {
        str(path): named(path) & forbidden for path in OUTSIDE_PARALLEL if named(path) & forbidden
    } == {}


def test_only_parallel_spells_the_names_of_mesh_axes() -> None:
    # The axis "data" is not checked, because the word is too common.
    found = [
        f"{path}:{node.lineno}"
        for path in OUTSIDE_PARALLEL
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and node.value in ("fsdp", "tensor")
    ]
    assert found == []


def test_jaxs_legacy_parallel_apis_are_unused() -> None:
    legacy = {"pmap", "xmap", "jax.experimental.shard_map", "pjit"}
    assert {str(path): named(path) & legacy for path in SOURCES if named(path) & legacy} == {}


def test_every_module_is_short_and_has_a_docstring() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
        assert text.count("\n") <= 400, f"{path} is two things"
