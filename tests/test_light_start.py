"""Verbs that make data or report a mistake in the configuration do not load JAX."""

import subprocess
import sys
from pathlib import Path

from tests.corpus import make_dataset, write_tokenizer
from tests.project import ROOT, environment

HEAVY = (
    *("jax", "jaxlib", "flax", "optax", "grain", "orbax", "scipy", "tensorflow_datasets"),
    *("pyarrow", "torch", "tensorflow"),
)
LIGHT = (
    *("bert_jax", "bert_jax.config", "bert_jax.data.rows.masking", "bert_jax.text"),
    *("bert_jax.verbs.vocab", "bert_jax.verbs.examples", "bert_jax.verbs.doctor"),
    *("bert_jax.launch.local_launcher", "bert_jax.verbs.submit", "bert_jax.verbs.watch"),
    *("bert_jax.verbs.stop", "bert_jax.verbs.jobs", "bert_jax.cli.commands"),
)


def lines_of(program: str, cwd: Path = ROOT) -> list[str]:
    """Runs a program in a new Python and returns its printed lines."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_light_verbs_and_first_lines_load_no_heavy_library() -> None:
    """--help and light verbs load no heavy library. A run's first line needs no pydantic."""
    program = (
        "import sys, bert_jax.cli; print('click' in sys.modules)\n"
        "import bert_jax.cli.commands, bert_jax.narration, bert_jax.parallel.stop_signal\n"
        "print([name for name in ('pydantic', 'yaml', 'numpy', 'psutil') if name in sys.modules])\n"
    ) + "".join(
        f"import {module}\nprint(['{module}:' + n for n in {HEAVY} if n in sys.modules])\n"
        for module in LIGHT
    )
    assert lines_of(program) == ["False", *["[]"] * (1 + len(LIGHT))]


_MISTAKES = """
import sys

sys.modules["jax"] = None  # importing it raises
from click.testing import CliRunner
from bert_jax.cli.commands import cli

for arguments in (
    ["pretrain", "pretrain.yaml"],
    ["pretrain", "pretrain.yaml", "train.phases.0.stepz=3"],
    ["pretrain", "pretrain.yaml", "tokenizer=nowhere"],
    ["pretrain", "pretrain.yaml", "optimizer.warmup_steps=1000"],
    ["finetune", "finetune.yaml"],
    ["finetune", "finetune.yaml", "finetune.init_from=run"],
    ["finetune", "finetune.yaml", "finetune.init_from=run", "finetune.task.train=some.csv"],
    ["finetune", "finetune.yaml", "finetune.init_from=classifier", "finetune.max_length=65"],
    ["finetune", "finetune.yaml", "finetune.init_from=hf", "finetune.max_length=65"],
    ["pretrain", "pretrain.yaml", "train.phases.0.seq_length=16", "train.phases.0.dataset=made"],
    ["pretrain", "pretrain.yaml", "model.architecture.max_position_embeddings=256"],
    ["fill-mask", "run", "no mask"],
    ["fill-mask", "nowhere", "a [MASK]"],
    ["fill-mask", "classifier", "a [MASK]"],
    *([verb, "nowhere", *more] for verb, *more in (
        ["evaluate"], ["predict", "out.csv"], ["features", "in.txt", "out.npz"], ["export", "out"]
    )),
):
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 2, (arguments, found.output, found.exception)
    print(found.stderr.strip())
"""


def test_simple_mistakes_are_reported_before_loading_jax(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    (tmp_path / "dataset").rename(tmp_path / "made")
    for name, settings in {
        "run": "{model: {}}",
        "classifier": "model: {architecture: {max_position_embeddings: 64}, heads: {mlm: false, "
        "next_sentence: false, task: sequence_classification, problem: single_label, "
        "labels: [a, b]}}",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(settings)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"max_position_embeddings": 64}')
    (tmp_path / "some.csv").write_text("texts,label\ngood,1\n")
    (tmp_path / "pretrain.yaml").write_text(
        "{run_dir: new, tokenizer: tokenizer, model: {size: tiny}, "
        "train: {phases: [{dataset: dataset, steps: 10}]}}"
    )
    (tmp_path / "finetune.yaml").write_text(
        "{run_dir: new, finetune: {init_from: nowhere, "
        "task: {kind: table, train: none.csv, text: text, label: label}}}"
    )
    printed = lines_of(_MISTAKES, tmp_path)
    expected = (
        ("train.phases.0.dataset: dataset", "dataset.missing"),
        ("override train.phases.0.stepz", "setting.unknown"),
        ("nowhere", "tokenizer.missing"),
        ("optimizer.warmup_steps", "optimizer.warmup"),
        ("nowhere", "run.missing"),
        ("none.csv", "file.missing"),
        ("finetune.task.text", "table.column_unknown"),
        ("finetune.max_length", "finetune.max_length"),
        ("finetune.max_length", "finetune.max_length"),
        ("train.phases.0.seq_length", "dataset.example_too_long"),
        ("train.phases.0.seq_length", "phases.seq_length"),
        ("fill-mask", "fill_mask.no_mask"),
        ("nowhere", "run.missing"),
        ("fill-mask", "run.no_mlm_head"),
        *[("nowhere", "run.missing")] * 4,
    )
    assert len(printed) == len(expected)
    for line, (place, key) in zip(printed, expected, strict=True):
        assert line.startswith(f"bert-jax: {place}: ")
        assert line.endswith(f" [{key}]")


_WITHOUT_DATA = """
import importlib, pkgutil, sys

for name in ("tensorflow_datasets", "mwparserfromhell", "sentencex", "rensa"):
    sys.modules[name] = None  # importing it raises
import bert_jax.verbs
from click.testing import CliRunner
from bert_jax.cli.commands import cli

for verb in pkgutil.iter_modules(bert_jax.verbs.__path__, "bert_jax.verbs."):
    importlib.import_module(verb.name)
from bert_jax.train.metrics_writer import RunWriter

writer = RunWriter(".", resume_step=0)
writer.write("train", 1, {"loss": 1.0})
writer.close()
print("torch" in sys.modules)
for verb in ("vocab", "examples"):
    found = CliRunner().invoke(cli, [verb, "run.yaml"])
    assert found.exit_code == 2, (verb, found.output, found.exception)
    print(found.stderr.strip().splitlines()[-1])
"""


def test_training_loads_no_data_libraries_or_pytorch(
    tmp_path: Path,
) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text("One sentence .\n")
    (tmp_path / "run.yaml").write_text(
        "vocab: {input: [text.txt], output: made/tokenizer}\n"
        "examples: {input: [text.txt], tokenizer: tokenizer, output: made/dataset}\n"
    )
    torch, *lines = lines_of(_WITHOUT_DATA, tmp_path)
    # PyTorch is installed for the tests, so tensorboardX could load it.
    assert torch == "False"
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    for verb, line in zip(("vocab", "examples"), lines, strict=True):
        assert line.startswith("bert-jax: tensorflow-datasets, mwparserfromhell, sentencex, rensa:")
        assert f"for {verb}." in line
        assert line.endswith("[install.missing]")
        assert "'.[data]'" in line
    assert not (tmp_path / "made" / "dataset").exists()
    assert not list((tmp_path / "made").rglob("*.txt"))
