import re
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax
import pytest

import bert_jax
from bert_jax.diagnostics.machine import check_run_dir
from bert_jax.diagnostics.network import (
    check_coordinator,
)
from bert_jax.parallel.section import DistributedSection, MeshSection
from bert_jax.verbs.doctor import DoctorReport, Finding, doctor
from tests.project import invoke, ok, project_config, write_config


def texts(report: DoctorReport, topic: str) -> list[str]:
    return [finding.text for finding in report.findings if finding.topic == topic]


def only(findings: Iterable[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_sound_machine_reports_its_versions(tmp_path: Path) -> None:
    report = bert_jax.doctor(run_dir=str(tmp_path / "run"))
    assert report.ok, report.of_level("problem")
    assert texts(report, "jax") == [jax.__version__]
    assert texts(report, "hosts") == ["1 expected (default), 1 seen"]
    assert f"{jax.device_count()} × cpu" in texts(report, "devices")[0]


def test_a_missing_platform_is_a_problem() -> None:
    report = doctor(config=MeshSection(platform="gpu"))
    assert not report.ok
    assert '"gpu"' in texts(report, "devices")[0]


def test_a_mesh_of_wrong_size_is_a_problem() -> None:
    report = doctor(config=MeshSection(data=3))
    assert [finding.topic for finding in report.of_level("problem")] == ["mesh"]


def test_missing_packages_except_libtpu_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bert_jax.diagnostics.machine._VERSIONS", ("jax", "no-such-package", "no-such-option")
    )
    monkeypatch.setattr("bert_jax.diagnostics.machine._OPTIONAL", frozenset({"no-such-option"}))
    assert only(doctor().of_level("problem")).topic == "no-such-package"


def test_run_directory_is_tried_and_left_unchanged(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    writable, disk = check_run_dir(str(tmp_path / "a" / "b"))
    assert tmp_path.stat().st_mtime_ns > before
    assert list(tmp_path.iterdir()) == []
    assert writable.level == disk.level == "ok"
    assert writable.text == f"{tmp_path}/a/b can be created in {tmp_path}"


def test_an_unwritable_run_directory_is_a_problem(tmp_path: Path) -> None:
    # Even root cannot write to /proc.
    assert only(check_run_dir("/proc/run")).level == "problem"
    (tmp_path / "file").touch()
    found = only(check_run_dir(str(tmp_path / "file" / "run")))
    assert found.level == "problem"
    assert found.text.startswith(f"{tmp_path}/file is a file")


def distributed(port: int, **changes: object) -> DistributedSection:
    return DistributedSection.model_validate(
        {"enabled": True, "coordinator_port": port, "process_count": 2, **changes}
    )


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def test_a_coordinator_port_in_use_is_a_problem(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert only(check_coordinator(distributed(port))).level == "problem"
    listener.close()
    assert only(check_coordinator(distributed(port))).level == "ok"


def test_a_silent_coordinator_is_a_warning(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    section = distributed(1, process_index=1, coordinator_address=f"127.0.0.1:{port}")
    assert only(check_coordinator(section)).text == f"127.0.0.1:{port} answers"
    listener.close()
    assert only(check_coordinator(section)).level == "warn"


def test_the_exit_code_is_1_only_with_a_problem(
    tmp_path: Path,
) -> None:
    sound = ok("doctor")
    lines = sound.splitlines()
    assert lines[-1].startswith("0 problems")
    # Quick findings are printed before slow checks.
    assert lines[0].startswith("ok      python: ")
    assert lines.index("starting JAX …") > 10
    (tmp_path / "run.yaml").write_text("run_dir: /proc/run\n")
    ill = invoke("doctor", tmp_path / "run.yaml")
    assert ill.exit_code == 1, ill.output
    assert ill.output.splitlines()[-1].startswith("1 problem,")


def test_a_configurations_data_and_size_are_checked(project: Path, tmp_path: Path) -> None:
    values = project_config(project) | {"run_dir": str(tmp_path / "run"), "mesh": {}}
    config = write_config(tmp_path / "run.yaml", values)
    whole = ok("doctor", config)
    assert "tokenizer: " in whole
    assert re.search(r"dataset: .*dataset32, [\d,]+ of train", whole)
    assert re.search(r"checkpoints of this model \(0\.\d MB each\)", whole)
    assert re.search(r"attention: xla: no kernel for cpu", whole)
    assert "kernels: norm: xla, loss: xla, ffn: xla" in whole
    assert "products: float32 in full precision" in whole
    lacking = invoke("doctor", config, "train.phases.0.dataset=none", "tokenizer=nowhere")
    assert lacking.exit_code == 1
    assert "problem tokenizer: nowhere: " in lacking.output
    assert "problem dataset: train.phases.0.dataset: none: " in lacking.output
    assert "2 problems" in lacking.output


def test_kernels_that_an_interpreter_would_run_are_a_warning(project: Path, tmp_path: Path) -> None:
    values = project_config(project) | {"run_dir": str(tmp_path / "run"), "mesh": {}}
    said = ok("doctor", write_config(tmp_path / "run.yaml", values), "model.execution.loss=fused")
    assert "\nwarn    kernels: model.execution.loss: fused without a TPU" in said


def test_a_model_or_file_on_a_hub_needs_its_library(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    task = {"kind": "table", "train": "hf://datasets/a/b", "text": "a", "label": "b"}
    tuning = {"init_from": "owner/name", "task": task}
    distilling = project_config(project) | {"mesh": {}, "run_dir": str(tmp_path / "run")}
    distilling["objective"] = {"kind": "distill", "teacher": "owner/name"}
    for values, topics in (
        ({"run_dir": str(tmp_path / "run"), "finetune": tuning}, ["init_from", "task"]),
        (distilling, ["objective"]),
    ):
        found = invoke("doctor", write_config(tmp_path / "run.yaml", values))
        assert found.exit_code == 1, found.output
        lines = [line for line in found.output.splitlines() if line.startswith("problem")]
        assert [line.split()[1] for line in lines] == [f"{topic}:" for topic in topics]
        assert all("huggingface_hub: not installed" in line for line in lines)


def test_a_step_larger_than_the_memory_is_a_warning(project: Path, tmp_path: Path) -> None:
    values = project_config(project) | {"mesh": {"platform": "cpu", "data": -1}}
    config = write_config(tmp_path / "run.yaml", values)
    needs = r"step: a step of phase 1 needs about ([\d.,]+) GiB per device: ([\d.,]+ MiB) for"
    small = re.search(f"ok +{needs.replace('GiB', 'MiB')}", ok("doctor", config))
    rows = 2**26  # 8 rows need megabytes
    large = re.search(f"warn +{needs}", ok("doctor", config, f"train.phases.1.batch_size={rows}"))
    assert small is not None
    assert large is not None
    assert large[2] == small[2] != "0.0 MiB"
    assert float(large[1].replace(",", "")) > 100
    accumulated = re.search(
        needs,
        ok(
            *("doctor", config, f"train.phases.1.batch_size={rows}"),
            f"train.phases.1.accumulation={rows // 64}",
        ),
    )
    assert accumulated is not None
    assert float(accumulated[1]) < float(large[1].replace(",", "")) / 10
