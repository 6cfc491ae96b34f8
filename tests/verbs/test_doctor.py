import io
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

import jax
import pytest
from rich.console import Console

import bert_jax
from bert_jax.diagnostics.findings import show
from bert_jax.diagnostics.network import (
    ExpectedHosts,
    check_coordinator,
    check_hosts,
    expected_hosts,
)
from bert_jax.diagnostics.storage import check_run_dir
from bert_jax.parallel.section import DistributedSection, MeshSection
from bert_jax.verbs.doctor import DoctorReport, Finding, doctor
from tests.project import invoke, project_config, write_config


def texts(report: DoctorReport, topic: str) -> list[str]:
    return [finding.text for finding in report.findings if finding.topic == topic]


def only(findings: Iterable[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_sound_machine_has_no_problem_and_its_versions_are_told(tmp_path: Path) -> None:
    report = bert_jax.doctor(run_dir=str(tmp_path / "run"))
    assert report.ok, report.of_level("problem")
    assert texts(report, "jax") == [jax.__version__]
    assert texts(report, "hosts") == ["1 expected (nothing says otherwise), 1 seen"]
    assert f"{jax.device_count()} × cpu" in texts(report, "devices")[0]


def test_a_platform_that_is_not_there_is_a_problem() -> None:
    report = doctor(config=MeshSection(platform="gpu"))
    assert not report.ok
    assert '"gpu"' in texts(report, "devices")[0]


def test_a_mesh_that_does_not_make_the_device_count_is_a_problem() -> None:
    report = doctor(config=MeshSection(data=3))
    assert [finding.topic for finding in report.of_level("problem")] == ["mesh"]


def test_a_version_older_than_required_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["jax[tpu]>=999; extra=='tpu'"])
    found = only(doctor().of_level("problem"))
    assert found == Finding("problem", "jax", f"found {jax.__version__}, allowed: >=999")


def test_a_missing_package_is_a_problem_and_a_missing_libtpu_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bert_jax.diagnostics.versions._VERSIONS", ("jax", "no-such-package", "no-such-option")
    )
    monkeypatch.setattr("bert_jax.diagnostics.versions._OPTIONAL", frozenset({"no-such-option"}))
    assert only(doctor().of_level("problem")).topic == "no-such-package"


def test_run_directory_is_tried_for_real_and_left_as_it_was(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    writable, disk = check_run_dir(str(tmp_path / "a" / "b"))
    assert tmp_path.stat().st_mtime_ns > before
    assert list(tmp_path.iterdir()) == []
    assert writable.level == disk.level == "ok"
    assert writable.text == f"{tmp_path}/a/b can be made in {tmp_path}"


def test_run_directory_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    # /proc refuses even root.
    assert only(check_run_dir("/proc/run")).level == "problem"
    (tmp_path / "file").touch()
    found = only(check_run_dir(str(tmp_path / "file" / "run")))
    assert found.level == "problem"
    assert found.text.startswith(f"{tmp_path}/file is a file")


def test_less_disk_than_three_checkpoints_is_a_problem(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert check_run_dir(str(tmp_path), checkpoint_bytes=free // 2)[-1].level == "problem"
    assert check_run_dir(str(tmp_path), checkpoint_bytes=free // 4)[-1].level == "ok"


def test_an_unknown_kind_of_address_is_a_problem() -> None:
    assert only(check_run_dir("s4://bucket/run")).level == "problem"


def distributed(port: int, **changes: object) -> DistributedSection:
    return DistributedSection.model_validate(
        {"enabled": True, "coordinator_port": port, "process_count": 2, **changes}
    )


@pytest.fixture
def listener() -> socket.socket:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def test_a_coordinator_port_in_use_is_a_problem(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert only(check_coordinator(distributed(port))).level == "problem"
    listener.close()
    assert only(check_coordinator(distributed(port))).level == "ok"


def test_a_coordinator_that_does_not_answer_is_a_warning(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    section = distributed(1, process_index=1, coordinator_address=f"127.0.0.1:{port}")
    assert only(check_coordinator(section)).text == f"127.0.0.1:{port} answers"
    listener.close()
    assert only(check_coordinator(section)).level == "warn"


def test_a_port_that_the_v6e_firewall_closes_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v6e-16")
    levels = {
        port: [found.level for found in check_coordinator(distributed(port))]
        for port in (8482, 8476)
    }
    assert levels == {8482: ["ok", "warn"], 8476: ["ok"]}


def test_hosts_expected_come_from_the_configuration_then_from_the_tpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t0,t1,t2,t3")
    assert expected_hosts(DistributedSection()).processes == 4
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    assert expected_hosts(DistributedSection()).processes == 8
    assert expected_hosts(DistributedSection(process_count=3)).processes == 3
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "WARNING: no hosts, set it by hand, please")
    assert expected_hosts(DistributedSection()).processes == 1


def test_fewer_hosts_than_expected_is_a_problem_that_says_what_to_do() -> None:
    expected = ExpectedHosts(4, "TPU_WORKER_HOSTNAMES")
    assert check_hosts(expected, seen=4, enabled=True).level == "ok"
    alone = check_hosts(expected, seen=1, enabled=False)
    assert alone.level == "problem"
    assert "mesh.distributed.enabled=true" in alone.text
    assert "every host" in check_hosts(expected, seen=1, enabled=True).text


def test_report_is_plain_lines_where_there_is_no_terminal() -> None:
    findings = (Finding("ok", "jax", "1"), Finding("warn", "gcp", "try a[b] " * 30))
    out = io.StringIO()
    assert show(findings, Console(file=out)) == DoctorReport(findings)
    lines = out.getvalue().splitlines()
    assert lines[0] == "ok      jax: 1"
    assert lines[1] == "warn    gcp: " + "try a[b] " * 30
    assert lines[2] == "0 problems, 1 warning"


def test_report_on_a_terminal_keeps_square_brackets() -> None:
    out = io.StringIO()
    findings = (Finding("problem", "gcp", "pip install '.[gcp]'"),)
    show(findings, Console(file=out, force_terminal=True, width=80))
    assert ".[gcp]" in out.getvalue()


def test_the_command_ends_with_one_where_there_is_a_problem_and_else_with_zero(
    tmp_path: Path,
) -> None:
    sound = invoke("doctor")
    assert sound.exit_code == 0, sound.output
    lines = sound.output.splitlines()
    assert lines[-1].startswith("0 problems")
    # What takes no time to find is not kept back for what does.
    assert lines[0].startswith("ok      python: ")
    assert lines.index("starting JAX …") > 10
    (tmp_path / "run.yaml").write_text("run_dir: /proc/run\n")
    ill = invoke("doctor", tmp_path / "run.yaml")
    assert ill.exit_code == 1, ill.output
    assert ill.output.splitlines()[-1].startswith("1 problem,")


def test_what_a_configuration_reads_is_looked_at_and_its_own_size_counted(
    project: Path, tmp_path: Path
) -> None:
    values = project_config(project) | {"run_dir": str(tmp_path / "run"), "mesh": {}}
    config = write_config(tmp_path / "run.yaml", values)
    whole = invoke("doctor", config)
    assert whole.exit_code == 0, whole.output
    assert "tokenizer: " in whole.output
    assert re.search(r"dataset: .*dataset32, [\d,]+ of train", whole.output)
    assert re.search(r"checkpoints of this model \(0\.\d MB each\)", whole.output)
    assert re.search(r"attention: xla: no kernel for cpu", whole.output)
    assert "kernels: norm: xla, loss: xla, ffn: xla" in whole.output
    lacking = invoke("doctor", config, "train.phases.0.dataset=none", "tokenizer=nowhere")
    assert lacking.exit_code == 1
    assert "tokenizer: nowhere: found no such directory" in lacking.output
    assert "dataset: none: no such directory" in lacking.output
    assert "2 problems" in lacking.output
