"""`bert-jax doctor CONFIG --first-hour FILE`: this machine and a short run, beside what we expect.

One process at a time can open a TPU. So this process opens no devices, but runs other verbs one
after another as child processes. Start reading at `_answers`.
"""

import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

from rich.console import Console

from bert_jax.config import RunConfig, dump_config
from bert_jax.diagnostics import host_facts
from bert_jax.diagnostics.findings import Level
from bert_jax.diagnostics.host_facts import Answer
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.narration import doing
from bert_jax.section import need
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.sections import BadStepsSection, CheckpointSection
from bert_jax.version import __version__
from bert_jax.workflows.pretraining_settings import TrainSection

_MOST_STEPS: Final = 100
_PARTS: Final = ("attention", "norm", "loss", "ffn")
_PLAIN: Final = tuple(f"model.execution.{part}=xla" for part in _PARTS)
_TOLERANCE: Final = 0.01  # allowed relative difference of two losses
_TIME_FACTOR: Final = 1.5  # allowed ratio of the measured to the planned time, and its inverse
_CHILD_SECONDS: Final = 1800.0
_TAIL: Final = 30  # lines of a failed child's output in the report


def first_hour(config: RunConfig, file: str, *, console: Console) -> bool:
    """Describes this machine, trains up to 100 steps in three ways, and writes a report.

    The three runs are: with kernels, the second half again from a checkpoint, and without kernels.
    They train the first phase in a temporary directory. Every answer is written at once.

    Args:
        config: configuration of pretraining. If the first phase has fewer steps, the trial has
            fewer steps.
        file: path of the report, local or gs://.
        console: console for the answers.

    Returns:
        Whether no answer differs from what we expect.

    Raises:
        UserError: a section of pretraining is missing, the configuration is for several processes,
            or the report cannot be written.
    """
    # Like Ctrl-C, these signals also end the child, which would keep the TPU.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bert_jax_first_hour_") as directory:
        trial, answers = _trial(config, Path(directory)), list[Answer]()
        for answer in _answers(trial, Path(directory)):
            answers.append(answer)
            _write(file, answers)
            line = f"{answer.verdict:<8}{answer.topic}: {answer.text}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return all(answer.verdict != "differs" for answer in answers)


def _trial(config: RunConfig, directory: Path) -> RunConfig:
    """Returns a configuration of the first phase alone, with few steps and a short warm-up."""
    verb = "doctor --first-hour"
    train = need(config.train, "train", verb)
    need(config.model, "model", verb)
    need(config.tokenizer, "tokenizer", verb)
    if config.mesh.distributed.enabled:
        raise UserError(
            "first_hour.processes",
            "found true, allowed: false. The report is about one host.",
            place="mesh.distributed.enabled",
        )
    first = train.phases[0]
    steps = min(first.steps, _MOST_STEPS)
    phase = first.model_copy(
        update={
            "steps": steps,
            "batch_ramp": (),
            "learning_rate": None,
            "warmup_steps": None,
            "decay_fraction": None,
        }
    )
    optimizer = config.optimizer.model_copy(
        update={
            "learning_rate": first.learning_rate or config.optimizer.learning_rate,
            "warmup_steps": steps // 10,
            "warmup_start": 0,
            "decay_fraction": None,
            "decay": "linear",
        }
    )
    section = TrainSection(
        phases=(phase,),
        log_every=1,
        evaluation=None,
        checkpoint=CheckpointSection(every=max(steps // 2, 1)),
        bad_steps=BadStepsSection(on_non_finite="stop"),
    )
    changes = {"run_dir": str(directory / "run"), "optimizer": optimizer, "train": section}
    return config.model_copy(update=changes)


def _answers(trial: RunConfig, directory: Path) -> Iterator[Answer]:
    yield host_facts.system()
    yield host_facts.packages()
    yield (cloud := host_facts.metadata())
    accelerator = cloud.facts.get("values", {}).get("accelerator-type")
    yield host_facts.machine(on_tpu=accelerator is not None)

    config = directory / "run.yaml"
    config.write_text(dump_config(trial), encoding="utf-8")
    yield (devices := _devices(config, on_tpu=accelerator is not None))
    if devices.verdict == "differs":
        yield Answer("trial", "unknown", "not started, because of the line above")
        return

    assert trial.train is not None
    run_dir, phase = directory / "run", trial.train.phases[0]
    done = _bert_jax("pretrain", config, what=f"training {phase.steps} steps")
    if done.code:
        yield done.failed("trial")
        return
    losses, speeds = _losses(run_dir), _speeds(run_dir)
    yield _falling(losses)

    # Without its last checkpoint, the run is in the state of a run that was killed before it.
    shutil.rmtree(run_dir / "checkpoints" / str(phase.steps))
    done = _bert_jax("pretrain", config, what="training the second half again")
    half = phase.steps // 2
    if done.code:
        yield done.failed("resume")
    elif _speeds(run_dir)[:half] != speeds[:half]:
        yield Answer("resume", "differs", "the run started again at step 0")
    else:
        exact = devices.facts["backend"] == "cpu"
        yield _resumed(losses, _losses(run_dir), exact=exact)

    plain = directory / "plain"
    changes = [*_PLAIN, f"run_dir={json.dumps(str(plain))}"]
    done = _bert_jax("pretrain", config, *changes, what="training without kernels")
    if done.code:
        yield done.failed("kernels")
    else:
        yield _kernels(losses, _losses(plain), used=devices.facts["kernels"])

    measured = statistics.median(phase.batch_size / speed for speed in speeds)
    yield _step_time(measured, *_planned(config, accelerator))


class _Ended(NamedTuple):
    """The end of a child process."""

    verb: str
    code: int
    output: str
    errors: str = ""

    def failed(self, topic: str) -> Answer:
        """Returns the answer about a child that failed."""
        lines = [line for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]
        last = "".join(lines[-1:])
        text = f"`bert-jax {self.verb}` ended with exit code {self.code}: {last}"
        return Answer(topic, "differs", text, {"output": lines[-_TAIL:]})


def _bert_jax(verb: str, config: Path, *arguments: str, what: str) -> _Ended:
    """Runs a verb in a child process; `what` names it in the progress."""
    with doing(what, at_once=True):
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bert_jax.cli", verb, config, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_CHILD_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return _Ended(verb, -1, f"no end within {_CHILD_SECONDS:.0f} s")
    return _Ended(verb, done.returncode, done.stdout, done.stderr)


def _devices(config: Path, *, on_tpu: bool) -> Answer:
    """Returns the findings of `bert-jax doctor` about devices, kernels and inputs."""
    done = _bert_jax("doctor", config, what="checking devices and inputs")
    lines = [line for line in done.output.splitlines() if line[:8].strip() in get_args(Level)]
    # The first finding of each topic.
    parts = [line[8:].partition(": ") for line in reversed(lines)]
    found = {topic: text for topic, _, text in parts}
    devices = found.get("devices", "")
    backend = devices.split('"')[1] if '"' in devices else None
    chosen = f"attention: {found.get('attention')}, {found.get('kernels')}"
    facts = {"backend": backend, "kernels": ": fused" in chosen, "doctor": lines}
    problems = [line[8:] for line in lines if line.startswith("problem")]
    if problems:
        return Answer("devices", "differs", "; ".join(problems), facts)
    if done.code:
        return done.failed("devices")
    wrong = on_tpu and backend != "tpu"
    return Answer("devices", "differs" if wrong else "ok", devices, facts)


def _planned(config: Path, accelerator: str | None) -> tuple[float | None, str]:
    """Returns the seconds of a step that `bert-jax plan` estimates, or None and the reason."""
    if accelerator is None:
        return None, "no TPU here"
    options = [f"--topology={accelerator}", "--json", "--no-suggest"]
    done = _bert_jax("plan", config, *options, what=f"planning for {accelerator}")
    if done.code:
        return None, done.failed("plan").text
    (plan,) = json.loads(done.output)
    return plan["phases"][0]["train"]["estimated"]["seconds"], ""


def _losses(run_dir: Path) -> list[float]:
    """Returns the loss of each step."""
    return [line["loss"] for line in read_metrics(run_dir, kind="train")]


def _speeds(run_dir: Path) -> list[float]:
    """Returns the rows per second of each step."""
    return [line["rows_per_second"] for line in read_metrics(run_dir, kind="speed")]


def _falling(losses: Sequence[float]) -> Answer:
    if len(losses) < 2:
        return Answer("loss", "unknown", "one step shows no trend", _shown(losses))
    part = math.ceil(len(losses) / 4)
    first, last = statistics.fmean(losses[:part]), statistics.fmean(losses[-part:])
    text = f"mean {first:.4f} in the first quarter of {len(losses)} steps, {last:.4f} in the last"
    return Answer("loss", "ok" if last < first else "differs", text, _shown(losses))


def _resumed(losses: Sequence[float], again: Sequence[float], *, exact: bool) -> Answer:
    found = _difference(losses, again)
    said = "differs" if found > (0.0 if exact else _TOLERANCE) else "ok"
    return Answer("resume", said, f"from the middle: {_compared(found)}", _shown(again))


def _kernels(losses: Sequence[float], plain: Sequence[float], *, used: bool) -> Answer:
    found = _difference(losses, plain)
    verdict = "differs" if found > _TOLERANCE else "ok" if used else "unknown"
    text = f"with and without kernels: {_compared(found)}"
    if not used:
        text += "; kernels do not run on these devices"
    return Answer("kernels", verdict, text, _shown(plain))


def _step_time(measured: float, planned: float | None, reason: str) -> Answer:
    text, facts = f"{measured * 1e3:.1f} ms (median)", {"measured": measured, "planned": planned}
    if planned is None:
        return Answer("step time", "unknown", f"{text}; no estimate: {reason}", facts)
    ratio = measured / planned
    near = 1 / _TIME_FACTOR <= ratio <= _TIME_FACTOR
    text += f", {ratio:.2f} times the {planned * 1e3:.1f} ms of `bert-jax plan`"
    return Answer("step time", "ok" if near else "differs", text, facts)


def _difference(left: Sequence[float], right: Sequence[float]) -> float:
    """Returns the largest relative difference of two lists of losses."""
    return max(abs(one - other) / abs(one) for one, other in zip(left, right, strict=True))


def _compared(difference: float) -> str:
    return f"losses differ by up to {difference:.3%}" if difference else "equal losses"


def _shown(losses: Sequence[float]) -> Mapping[str, str]:
    return {"losses": " ".join(f"{loss:.6g}" for loss in losses)}


def _write(file: str, answers: Sequence[Answer]) -> None:
    content = {
        "bert-jax": __version__,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "answers": [answer._asdict() for answer in answers],
    }
    write_whole(file, json.dumps(content, indent=1) + "\n")
