"""On several processes, the verbs after training write each file once."""

import json
import shutil
from pathlib import Path

import pytest

from tests.objectives.runs import config_of
from tests.processes.hosts import free_port, joining, start, start_one
from tests.project import ok, one_phase, write_config


@pytest.fixture(scope="module")
def trained(alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process. test_pretrain.py tests that two processes train alike."""
    return shutil.copytree(alone, tmp_path_factory.mktemp("trained") / "run")


def on_two(*arguments: object, directory: Path) -> list[str]:
    """Runs a verb with --mesh on two processes, and returns their outputs."""
    port = free_port()
    hosts = []
    for index in range(2):
        settings = [item.removeprefix("mesh.") for item in joining(index, count=2, port=port)]
        settings = [setting for setting in settings if setting.startswith("distributed.")]
        mesh = [part for setting in settings for part in ("--mesh", setting)]
        hosts.append(start_one(*arguments, *mesh, index=index, directory=directory))
    codes = [host.wait() for host in hosts]
    assert codes == [0, 0], "\n".join(host.out + host.err for host in hosts)
    return [host.out for host in hosts]


def test_evaluation_equals_that_of_one_process(trained: Path, tmp_path: Path) -> None:
    on_two("evaluate", trained, directory=tmp_path)
    two = json.loads((trained / "evaluation.json").read_text())
    ok("evaluate", trained)
    alone = json.loads((trained / "evaluation.json").read_text())
    assert two["examples"] == alone["examples"] > 50  # depends on the Python's documentation
    assert two["scores"] == pytest.approx(alone["scores"], rel=1e-5)


def test_electra_is_evaluated_alike_by_any_number_of_processes(
    project: Path, tmp_path: Path
) -> None:
    """Its evaluation draws pieces, and ranks the tokens of all batches."""
    dataset = tmp_path / "dataset"
    examples = write_config(tmp_path / "examples.yaml", one_phase(project))
    ok("examples", examples, f"examples.output={dataset}", "examples.kind=full_sentences")
    config, run_dir = config_of(project, tmp_path, "electra", "electra", dataset)
    ok("pretrain", config, "train.evaluation=null")
    scores = []
    for evaluate in (lambda *each: on_two(*each, directory=tmp_path), ok):
        evaluate("evaluate", run_dir, "--batch-size", 8 if scores else 16)
        scores.append(json.loads((Path(run_dir) / "evaluation.json").read_text())["scores"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert 0 < scores[0]["replaced_auc"] < 1


def test_the_other_process_waits_for_the_writer(trained: Path, tmp_path: Path) -> None:
    """Also tests `import` and `features`."""
    said = on_two("export", trained, tmp_path / "hf", directory=tmp_path)
    assert (tmp_path / "hf" / "model.safetensors").exists()
    assert said[1] == ""
    said = on_two("fill-mask", trained, "the [MASK] .", directory=tmp_path)
    assert "%" in said[0]
    assert said[1] == ""


@pytest.mark.parametrize(
    "mesh", [("mesh.data=1", "mesh.tensor=2"), ("mesh.data=2", "mesh.copies=2")]
)
def test_a_run_resumes_with_another_mesh_over_hosts(
    mesh: tuple[str, ...], config: Path, trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    more = ["train.phases.0.steps=10", *mesh]
    with start("pretrain", config, f"run_dir={run}", *more, count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
        assert "step 10/10" in job[0].out
