"""`pretrain --init-from`: a run takes the network, the tokenizer and the parameters of a model."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.objectives.teachers import write_teacher
from tests.project import invoke, ok, one_phase, project_config, refused, says, write_config
from tests.verbs.test_pretrain import params_of

pytestmark = pytest.mark.slow

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}
# No defaults of BERT. There are more rows than pieces.
NETWORK = BertArchitecture.model_validate(
    {
        **SIZES,
        "vocab_size": 700,
        "hidden_act": "gelu_erf",
        "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
)


class Start:
    """A model, and a configuration that continues it for one step with a learning rate of zero."""

    def __init__(self, project: Path, root: Path) -> None:
        self.project = project
        self.model = self.write("model", load_tokenizer(project / "tokenizer"), root)
        self.values = one_phase(project, steps=1, evaluation=None, checkpoint={"every": 1})
        self.values["optimizer"]["warmup_steps"] = 1
        self.values["model"] = {"execution": {"dtype": "float32"}}
        self.config = write_config(root / "run.yaml", self.values)

    def write(self, name: str, tokenizer: Tokenizer, root: Path, **changes: Any) -> Path:
        network = NETWORK.with_changes(changes)
        return write_teacher(root / name, network, heads=HeadsSection(), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def start(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    return Start(project, tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def run(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that began with the model. Its output is in `said.txt` beside it."""
    root = tmp_path_factory.mktemp("run")
    rate = "model.architecture.hidden_dropout_prob=0.05"  # dropout may differ
    command = ("pretrain", start.config, rate, f"run_dir={root / 'run'}")
    (root / "said.txt").write_text(ok(*command, "--init-from", start.model))
    return root / "run"


def test_a_run_takes_the_network_and_the_parameters(start: Start, run: Path) -> None:
    found = yaml.safe_load((run / "config.yaml").read_text())["model"]["architecture"]
    assert found == NETWORK.model_dump() | {"hidden_dropout_prob": 0.05}
    jax.tree.map(np.testing.assert_array_equal, params_of(run), params_of(start.model))
    said = (run.parent / "said.txt").read_text()
    assert "unigram entropy" in said
    assert "at the start" not in said


def test_doctor_checks_the_model_to_start_from(start: Start, tmp_path: Path) -> None:
    command = ("doctor", start.config, f"run_dir={tmp_path}/run", "--init-from", start.model)
    said = ok(*command)
    assert f"--init-from: {start.model} is a run" in said
    assert f"model: {NETWORK.max_position_embeddings} positions" in said
    other = invoke(*command, "model.kind=roberta")
    assert other.exit_code == 1
    assert "problem --init-from: model.kind: found kind roberta" in other.output
    assert refused("doctor", "--init-from", start.model).key == "doctor.init_from"


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("architecture.hidden_act", "gelu_tanh", "hidden_act", "gelu_erf"),
        ("architecture.layer_norm_eps", 1e-12, "layer_norm_eps", 1e-5),
        ("architecture.max_position_embeddings", 64, "max_position_embeddings", 48),
        ("architecture.vocab_size", 640, "vocab_size", 700),
        ("size", "tiny", "num_hidden_layers", 1),
        ("kind", "roberta", "kind", "bert"),
    ],
)
def test_another_network_is_refused(
    start: Start, tmp_path: Path, key: str, value: Any, name: str, expected: Any
) -> None:
    command = ("pretrain", start.config, f"run_dir={tmp_path}/run", f"model.{key}={value}")
    error = refused(*command, "--init-from", start.model)
    says(error, key="init_from.other_model", place=f"model.{key}")
    says(error, name=name, expected=expected)
    says(error, found=2 if key == "size" else value)
    assert not (tmp_path / "run").exists()


def test_another_network_in_a_file_is_refused(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "bert_config.json"
    sizes = NETWORK.model_dump(exclude={"position_embedding", "layer_norm_eps"})
    file.write_text(json.dumps({**sizes, "hidden_act": "gelu"}))
    command = ("pretrain", start.config, f"run_dir={tmp_path}/run", f"model.bert_config={file}")
    error = refused(*command, "--init-from", start.model)
    says(error, key="init_from.other_model", place="model.bert_config")
    says(error, found="gelu_tanh", expected="gelu_erf")


def test_another_tokenizer_is_refused(start: Start, tmp_path: Path) -> None:
    own = load_tokenizer(start.project / "tokenizer")
    pieces = own.pieces(range(own.vocab_size))
    others = {"order": [*pieces[:-2], pieces[-1], pieces[-2]], "more": [*pieces, "kubernetes"]}
    for name, changed in others.items():
        model = start.write(name, WordPieceTokenizer(changed, lower_case=True), tmp_path)
        command = ("pretrain", start.config, f"run_dir={tmp_path}/run", "--init-from", model)
        error = refused(*command)
        says(error, key="init_from.tokenizer", place="tokenizer")
        says(error, pieces=640, expected=len(changed))
        says(error, same=str(model / "tokenizer"))
    assert not (tmp_path / "run").exists()


def test_the_run_of_an_extended_vocabulary_is_a_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "domain.txt").write_text("the kubernetes cluster\n" * 9)
    section = {"input": [str(tmp_path / "domain.txt")], "output": str(tmp_path / "grown")}
    ok("vocab", write_config(tmp_path / "v.yaml", {"vocab": section}), "--extend", start.model)
    tokenizer, data = tmp_path / "grown" / "tokenizer", tmp_path / "data"
    examples = project_config(start.project)["examples"]
    examples |= {"tokenizer": str(tokenizer), "output": str(data)}
    ok("examples", write_config(tmp_path / "e.yaml", {"examples": examples}))
    run = (f"run_dir={tmp_path}/run", f"train.phases.0.dataset={data}", f"tokenizer={tokenizer}")
    command = ("pretrain", start.config, *run, "--init-from")
    assert refused(*command, start.model).key == "init_from.tokenizer"
    ok(*command, tmp_path / "grown")


def test_the_same_command_resumes(start: Start, run: Path) -> None:
    rate, place = "model.architecture.hidden_dropout_prob=0.05", f"run_dir={run}"
    same = ("pretrain", start.config, rate, place, "--init-from", start.model)
    moved = start.model.rename(start.model.with_name("moved"))
    assert "resuming at step 1 of 1" in ok(*same)  # does not read the model again
    moved.rename(start.model)
    without = (*same[:-2], *(f"model.architecture.{name}={size}" for name, size in SIZES.items()))
    assert "resuming at step 1 of 1" in ok(*without)  # the run keeps its own network
    error = refused(*without, "model.architecture.hidden_act=gelu_tanh")
    says(error, key="init_from.other_model", expected="gelu_erf")


def test_a_run_with_checkpoints_keeps_its_start(start: Start, run: Path, tmp_path: Path) -> None:
    other = start.write("other", load_tokenizer(start.project / "tokenizer"), tmp_path)
    fresh = tmp_path / "fresh"
    sizes = f"model.architecture={json.dumps(SIZES)}"
    ok("pretrain", start.config, f"run_dir={fresh}", sizes)
    for directory, began in ((run, f"with {start.model}"), (fresh, "without this option")):
        before = (directory / "provenance.json").read_bytes()
        command = ("pretrain", start.config, f"run_dir={directory}", "train.phases.0.steps=2")
        error = refused(*command, "--init-from", other)
        says(error, key="init_from.other_start", began=began)
        says(error, found=str(other))
        assert (directory / "provenance.json").read_bytes() == before


def test_a_start_without_a_checkpoint_is_repeated(start: Start, run: Path, tmp_path: Path) -> None:
    """A run that is killed before its first save must not begin anew with random parameters."""
    stopped = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(stopped / "checkpoints")
    sizes = f"model.architecture={json.dumps(SIZES)}"
    error = refused("pretrain", start.config, f"run_dir={stopped}", sizes)
    says(error, key="init_from.missing", began=str(start.model))
