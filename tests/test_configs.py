"""The verbs accept every committed configuration."""

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bert_jax
from benchmarks.speedrun.tier import load_tier
from bert_jax.cli.commands import cli
from bert_jax.config import as_config, dump_config, load_config, parse_config
from bert_jax.errors import UserError
from bert_jax.files.yaml_file import parse_yaml
from bert_jax.parallel.section import MeshSection, check_batch
from bert_jax.train.schedule_segments import schedule_segments
from tests.project import ROOT, refused, refuses, says

FILES = sorted((ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_committed_configurations_round_trip(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml") == config
    if config.finetune is not None:
        assert config.model is None  # it is the origin's
        return
    if config.score is not None:
        return
    assert config.model is not None
    assert config.train is not None
    assert sum(stretch.steps for stretch in schedule_segments(config.train, config.optimizer)) == (
        config.train.total_steps
    )
    if path.parts[-2:] == ("new", "adapt.yaml"):
        return  # the checkpoint has the sizes
    architecture = config.model.resolve(vocab_size=30522)
    assert architecture.vocab_size == 30522
    for phase in config.train.phases:
        phase.check_positions(architecture.max_position_embeddings, key="phase")
        phase.architecture_changes(architecture, key="phase")
    for key, (rows, accumulation) in config.train.batch_sizes.items():
        check_batch(key, rows, parts=_parts(config.mesh), accumulation=accumulation)


def _parts(mesh: MeshSection) -> int:
    """Returns the number of devices that share a batch; 16 on a TPU."""
    return 16 if mesh.platform == "tpu" else 1


@pytest.mark.parametrize(
    ("overrides", "source"),
    [
        (["model.size=base"], "override model.size"),
        (
            ["model={kind: modernbert, size: base, architecture: {num_hidden_layers: 3}}"],
            "override model.size",
        ),
    ],
)
def test_size_with_another_architecture_names_both_keys(overrides: list[str], source: str) -> None:
    demo = ROOT / "configs" / "demo.yaml"
    with pytest.raises(UserError) as caught:
        load_config(demo, overrides)
    line = str(caught.value)
    assert line.startswith(f"{source}: found ")
    assert "model.architecture." in line
    assert "\n" not in line
    # Removing either of the two settings in the error fixes it.
    mended = load_config(demo, ["model.size=base", "model.architecture={}"])
    assert mended.model is not None
    assert mended.model.resolve(vocab_size=30522).hidden_size == 768
    same = "{hidden_size: 768, num_hidden_layers: 22, num_attention_heads: 12}"
    assert load_config(demo, ["model.size=base", f"model.architecture={same}"]).model is not None


def test_packaged_configurations_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = load_config(ROOT / "configs" / "finetune" / "mrpc.yaml", ["seed=5"])
    for name in ("configs/finetune/mrpc.yaml", "finetune/mrpc.yaml", "finetune/mrpc"):
        assert load_config(name, ["seed=5"]) == expected
    near = '; did you mean "finetune/mrpc"?'
    with refuses("file.missing", place="finetune/mprc.yaml", hint=near):
        load_config("finetune/mprc.yaml")
    with refuses("file.missing", place="nothing.like.it.yaml"):
        load_config("nothing.like.it.yaml")
    (tmp_path / "finetune").mkdir()
    (tmp_path / "finetune" / "mrpc.yaml").write_text("seed: 9")
    assert load_config("finetune/mrpc.yaml").seed == 9


def test_new_writes_an_accepted_commented_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuning, training = (
        {"table", "glue", "ner", "squad", "embedding", "rerank"},
        {"laptop", "pretrain"},
    )
    kinds = tuning | training | {"modernbert", "adapt", "score"}
    for kind in kinds:
        done = CliRunner().invoke(cli, ["new", kind])
        assert done.exit_code == 0, done.output
        assert done.output.startswith(f"{kind}.yaml: ")
        config = load_config(f"{kind}.yaml")
        assert (config.finetune is not None) == (kind in tuning)
        text = (tmp_path / f"{kind}.yaml").read_text()
        assert text.count("#") > 5
        for line in re.findall(r"^ +# \w+: .*$", text, re.MULTILINE):  # settings in comments
            changed = text.replace(line, line.replace("# ", "", 1))
            parse_config(parse_yaml(changed, kind), source=kind)
        command = re.compile(r"^#   bert-jax ([\w-]+) +(.*?)(?:  .*)?$", re.MULTILINE)
        for verb, words in command.findall(text):
            assert cli.commands[verb].make_context(verb, shlex.split(words))
    assert bert_jax.new("table", "mine.yaml") == Path("mine.yaml")
    assert "bert-jax finetune mine.yaml" in Path("mine.yaml").read_text()
    for arguments, key, values in (
        (["new", "table"], "output.exists", {"place": "table.yaml"}),
        (["new", "tabel"], "new.kind", {"allowed": sorted(kinds)}),
    ):
        line = refused(*arguments)
        assert line.key == key
        says(line, **values)
    assert CliRunner().invoke(cli, ["new", "table", "--force"]).exit_code == 0


def test_the_configuration_for_a_laptop_is_the_speedruns() -> None:
    ours, measured = load_config("new/laptop"), load_tier("laptop").recipe.load()
    for name in ("model", "objective", "optimizer"):
        assert getattr(ours, name) == getattr(measured, name), name
    assert ours.train is not None
    assert measured.train is not None
    (phase,), (theirs,) = ours.train.phases, measured.train.phases
    assert (phase.batch_size, phase.seq_length) == (theirs.batch_size, theirs.seq_length)
    assert phase.packing == theirs.packing


@pytest.mark.parametrize("verb", ["vocab", "examples", "pretrain", "finetune", "plan"])
def test_python_verbs_accept_every_form_of_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    more = {"plan": [["v5e:4x4"]]}.get(verb, [])
    for path in ("none.yaml", Path("none.yaml")):
        with refuses("file.missing", place="none.yaml") as caught:
            getattr(bert_jax, verb)(path, *more)
        assert "`bert-jax new`" in str(caught.value)
    with refuses("argument.value", place="config", found="3"):
        getattr(bert_jax, verb)(3, *more)
    Path("run.yaml").write_text("seed: 1\n")
    for config in ("run.yaml", {"seed": 1}, bert_jax.RunConfig(seed=1)):
        with refuses("plan.vocab_size" if verb == "plan" else "setting.needed", kind=UserError):
            getattr(bert_jax, verb)(config, *more, seed=2)
        with refuses("setting.value", place="override mesh.data", found='"x"'):
            getattr(bert_jax, verb)(config, *more, **{"mesh.data": "x"})
        with refuses("setting.unknown", place="override sed", hint='; did you mean "seed"?'):
            getattr(bert_jax, verb)(config, *more, sed=2)


def test_overrides_in_python_equal_those_of_the_command_line() -> None:
    path = "configs/pretrain/base.yaml"
    phase = {"dataset": "d", "steps": 9, "seq_length": 128, "batch_size": 8}
    values = {"seed": 3, "train.phases.0.steps": 100, "train.phases.1": phase, "mesh": {"data": 2}}
    spelled = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    expected = load_config(path, spelled)
    assert load_config(path, values) == expected
    assert as_config(path, values) == as_config(load_config(path), values) == expected
    given: Any = parse_yaml((ROOT / path).read_text(), "base.yaml")
    before = copy.deepcopy(given)
    assert parse_config(given, values) == as_config(given, values) == expected
    assert given == before


def test_a_missing_configuration_names_the_command_to_type(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "base.yaml"):
        (run / name).touch()
    with refuses("config.directory", place=run) as caught:
        load_config(run)
    assert f'"{run}/config.yaml"' in str(caught.value)
    with refuses("file.missing", place=run / "bsae.yaml") as caught:
        load_config(run / "bsae.yaml")
    assert '"base.yaml"' in str(caught.value)
    with refuses("file.missing", place=tmp_path / "bse.yaml") as caught:
        load_config(tmp_path / "bse.yaml")
    assert "bert-jax new" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        (
            "objective.masking.max_predictions=40",
            "config.max_predictions",
            {"setting": "train.phases.0.max_predictions", "found": 20, "other": 40},
        ),
        (
            "vocab={input: [x], output: y, algorithm: bpe, chinese: false}",
            "setting.ignored",
            {"place": "override vocab.chinese", "allowed": "algorithm wordpiece"},
        ),
        (
            "examples.beam.runner=FlinkRunner",
            "setting.ignored",
            {"setting": "examples.beam", "allowed": "engine beam"},
        ),
    ],
)
def test_an_unused_setting_is_refused(override: str, key: str, values: dict[str, Any]) -> None:
    config = ROOT / "configs/pretrain/base.yaml"
    load_config(config)
    with refuses(key, **values):
        load_config(config, [override])
