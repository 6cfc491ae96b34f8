"""Commands in tpu_setup/README.md and docs/submit.md work, on a simulated cloud."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bert_jax.config import load_config, parse_config
from bert_jax.launch.job import HostStatus, JobFiles
from bert_jax.parallel.topology import parse_topology
from tests.launch.scripted import Provider
from tests.project import ROOT, ok

README = ROOT / "tpu_setup" / "README.md"


PAGE = ROOT / "docs" / "submit.md"


_FENCE = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


_SETTINGS = {"PROJECT": "my-project", "REGION": "us-west4", "ZONE": "us-west4-a"}


def commands(page: Path, **variables: str) -> Iterator[list[str]]:
    """Yields the words of every command of a page, split as by a shell."""
    for block in _FENCE.findall(page.read_text(encoding="utf-8")):
        text = block.replace("\\\n", " ")
        for name, value in (_SETTINGS | variables).items():
            text = text.replace(f"${name}", value)
        assert not re.search(r"(?<!\\)\$", text), text
        for line in text.splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def of_ours(page: Path, **variables: str) -> Iterator[list[str]]:
    """Yields the arguments of our commands, also of commands inside arguments of other programs."""
    for words in commands(page, **variables):
        if words[0] == "bert-jax":
            yield words[1:]
        for word in words[1:]:
            _, ours, rest = word.partition("bert-jax pretrain ")
            if ours:
                yield ["pretrain", *shlex.split(rest)]


def test_every_submit_of_the_pages_passes_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    count = 0
    for page in (README, PAGE):
        for verb, *words in of_ours(page, BUCKET="gs://your-bucket"):
            if verb != "submit":
                continue
            options = [word for word in words if word != "--watch"]
            said = ok("submit", *options, "--dry-run", "--project", "my-project")
            assert re.match(r"Dry run of job (base|tiny|mine): ", said), words
            assert "submit needs --max-cost" not in said, words
            count += 1
    assert count >= 4


def test_the_readmes_other_verbs_accept_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    seen = set()
    for verb, *words in of_ours(README, BUCKET="gs://your-bucket"):
        seen.add(verb)
        if verb in ("vocab", "examples", "pretrain"):
            name, *overrides = words
            parse_config({}, overrides, source=name)
            if not name.startswith("gs://"):
                assert getattr(load_config(name, overrides), {"pretrain": "train"}.get(verb, verb))
    assert seen == {"vocab", "examples", "pretrain", "submit", "jobs"}


def test_the_page_copies_the_configurations_files() -> None:
    (copied,) = (
        set(words[4:-1])
        for words in commands(README, BUCKET="gs://your-bucket")
        if words[:4] == ["gcloud", "storage", "cp", "-r"]
    )
    values = load_config(str(ROOT / "configs" / "pretrain" / "base.yaml"))
    assert values.tokenizer is not None
    assert values.train is not None
    read = [values.tokenizer, *(phase.dataset for phase in values.train.phases)]
    assert {path.split("/")[0] for path in read} == copied


def test_the_manual_request_has_the_tables_runtime() -> None:
    (words,) = (
        words
        for words in commands(README, BUCKET="gs://your-bucket")
        if words[:5] == ["gcloud", "compute", "tpus", "queued-resources", "create"]
    )
    given = dict(itertools.pairwise(words))
    topology = parse_topology(given["--accelerator-type"])
    assert given["--runtime-version"] == topology.accelerator.runtime_version


def test_the_pages_commands_work_on_a_running_job(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    bucket = tmp_path / "b"
    values = yaml.safe_load(config.read_text()) | {"run_dir": str(bucket / "runs" / "base")}
    values["submit"] |= {"hosts": 4, "bucket": str(bucket)}
    config.write_text(yaml.safe_dump(values))
    ok("submit", config, "--yes")
    files = JobFiles(bucket / "jobs" / "base")  # pyright: ignore[reportArgumentType]
    host = files.host(1, 3)
    host.write_text(HostStatus(state="done", at=1.0, step=9).model_dump_json())
    files.log(1, 3).write_text("step 9\n")
    seen = []
    for verb, *words in of_ours(PAGE):
        if verb != "submit":
            words = [word.replace("gs://your-bucket", str(bucket)) for word in words]
            said = ok(verb, *("base" if word == "NAME" else word for word in words))
            seen.append((verb, said.splitlines()[0]))
    assert seen == [
        ("status", f"job        base ({files.directory})"),
        ("logs", "step 9"),
        ("jobs", f"base-1 in : active, bills, watched, {files.directory}"),
        ("jobs", f"base-1 in : active, bills, watched, {files.directory}"),
        ("stop", "base-1: stopped: by `bert-jax stop`"),
    ]
    assert provider.machines == {}


FOLDER = Path(__file__).parents[2] / "tpu_setup"


def test_the_skypilot_example_requests_real_machines() -> None:
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    topology = parse_topology(task["resources"]["accelerators"])
    runtime = task["resources"]["accelerator_args"]["runtime_version"]
    assert runtime == topology.accelerator.runtime_version
    program, verb, _, *overrides = shlex.split(task["run"])
    assert (Path(program).name, verb) == ("bert-jax", "pretrain")
    parse_config({}, overrides, source="skypilot.yaml")
