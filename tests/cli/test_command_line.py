"""The command line: one-line errors with suggestions, help, and exit codes."""

import importlib
import re
import shlex
import sys
from types import SimpleNamespace

import pytest

from bert_jax.cli import main
from bert_jax.cli.commands import cli
from bert_jax.errors import PeerLost, RunStopped, UserError
from bert_jax.parallel import processes
from tests.project import ROOT, ok, refused, says

OPTION, VERB = "command_line.unknown_option", "command_line.unknown_verb"
USAGE, MISSING = "command_line.usage", "command_line.missing"


@pytest.mark.parametrize(
    ("arguments", "key", "place", "words"),
    [
        ("pretrain run.yaml --batch-size 8", OPTION, "--batch-size", "train.phases.0.batch_size=8"),
        ("pretrain run.yaml --batchsize=8", OPTION, "--batchsize", "train.phases.0.batch_size=8"),
        ("pretrain run.yaml --learning-rate 1e-4", OPTION, "--learning-rate", "learning_rate=1e-4"),
        ("finetune run.yaml --batch-size 8", OPTION, "--batch-size", "finetune.batch_size=8"),
        ("vocab run.yaml --size", OPTION, "--size", "vocab.size=VALUE"),
        ("pretrain run.yaml --gpus 8", OPTION, "--gpus", "--init-from"),
        ("pretrain run.yaml --gpus 8", OPTION, "--gpus", "key=value"),
        ("fill-mask run text --topk 3", OPTION, "--topk", '"--top-k"'),
        ("fill-mask run text --top-k x", USAGE, "--top-k", "'x'"),
        ("fill-mask", MISSING, "RUN_DIR", "bert-jax fill-mask --help"),
        ("evaluate run two", USAGE, "evaluate", "two"),
        ("pretain run.yaml", VERB, "verb", "allowed: new, "),
        ("pretain run.yaml", VERB, "verb", '; did you mean "pretrain"?'),
        ("--verbos", USAGE, "bert-jax", "bert-jax --help"),
    ],
)
def test_command_line_mistakes_get_one_line(
    arguments: str, key: str, place: str, words: str
) -> None:
    line = refused(*arguments.split())
    assert line.key == key
    says(line, place=place)
    assert words in line


def test_help_lists_every_verb_once_in_order() -> None:
    text = ok("--help")
    assert re.findall(r"^(?!Usage|Options)(\w[\w ]+):$", text, re.MULTILINE) == [
        *("Prepare data", "Train", "Use", "Convert", "Cloud", "Check")
    ]
    verbs = re.findall(r"^  ([a-z-]+)  +\S", text.partition("Prepare data:")[2], re.MULTILINE)
    assert sorted(verbs) == sorted(cli.commands)
    assert verbs.index("new") < verbs.index("vocab") < verbs.index("pretrain")


@pytest.mark.parametrize("verb", cli.commands)
def test_the_help_of_a_verb_ends_with_an_example_and_a_page(verb: str) -> None:
    example, page = ok(verb, "--help").splitlines()[-2:]
    words = shlex.split(example.removeprefix("Example: "))
    assert words[:2] == ["bert-jax", verb]
    cli.commands[verb].make_context(verb, words[2:])  # exits if an argument or option is wrong
    assert (ROOT / page.removeprefix("More: ")).is_file()


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError, 70), (RunStopped, 1), (UserError, 2), (PeerLost, 4)],
)
def test_only_an_uncaught_exception_exits_with_70(
    error: type[Exception],
    code: int,
    debug: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object, **values: object) -> None:
        raise error("test.failed", "it failed")

    monkeypatch.setattr(importlib.import_module("bert_jax.verbs.status"), "status", fail)
    monkeypatch.setattr(sys, "argv", ["bert-jax", "status", "run", *debug])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    printed = capsys.readouterr().err
    assert "it failed" in printed
    assert ("Traceback" in printed) == (bool(debug) or code == 70)


def test_uncaught_exception_exits_with_70_in_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: calls.append("traceback"))
    monkeypatch.setattr(processes, "end_now", lambda *given, printed: calls.extend(given))
    processes._report_errors(SimpleNamespace(explain=lambda: None))  # pyright: ignore
    sys.excepthook(RuntimeError, RuntimeError("it failed"), None)
    assert calls == ["traceback", 70, "RuntimeError: it failed"]
