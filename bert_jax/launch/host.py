"""The agent of one host: stages data, runs the job's verb, restarts it, and uploads reports.

`tpu_setup/startup.sh` starts it as `python -m bert_jax.launch.host` on Cloud TPU VMs, in
containers and for `on: local`. Start reading at `Agent.run` and `Agent._run_until_end`.
"""

import contextlib
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from etils import epath

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.data.google_bert.reader import is_google_bert
from bert_jax.data.loader.mixing_section import paths_of
from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.launch.assignment import (
    Assignment,
    HostEnvironment,
    read_assignment,
    read_environment,
)
from bert_jax.launch.heartbeat_reader import Hosts, read_hosts
from bert_jax.launch.heartbeat_writer import HeartbeatWriter
from bert_jax.launch.job import Ending
from bert_jax.launch.run_process import NEVER_MET, RestartDecision, Restarts, RunProcess
from bert_jax.parallel.channel import INTERRUPTED, PEER_LOST
from bert_jax.parallel.stop_signal import SignalPipe

_DONE: Final = 0
_MISTAKE: Final = 2
_STARTING: Final = ("installing", "staging")  # states before a host starts the run


class _Stopped(Exception):
    """SIGTERM arrived while no process of the run existed."""


class Agent:
    """Runs one host's part of a job to its end."""

    def __init__(self, host: HostEnvironment, reports: HeartbeatWriter, heartbeat: Path) -> None:
        """Starts no process. `heartbeat`: the file to which the run writes its progress."""
        self._host, self._reports, self._heartbeat = host, reports, heartbeat
        self._restarts = Restarts(host.pause_seconds)
        self._stop = threading.Event()
        self._process: RunProcess | None = None

    def run(self) -> int:
        """Runs to the end and returns the exit code.

        0: done; 1 and 2: exit codes of the run; 3: stopped by a signal; 4: this machine or the
        bucket failed; 5: the hosts never met. If the run ended before a reboot, returns its exit
        code at once.
        """
        before = self._reports.status
        if before.state in ("done", "failed") and before.exit_code is not None:
            self._reports.say(f"{before.state} before this machine restarted")
            return before.exit_code
        try:
            verdict = self._run_until_end(read_assignment(self._host))
        except UserError as error:
            verdict = RestartDecision("failed", _MISTAKE, error.line())
        except _Stopped:
            verdict = RestartDecision("stopped", INTERRUPTED, "SIGTERM")
        except Exception as error:  # such as a bucket without an answer, or a full disk
            if not isinstance(error, RunStopped):
                self._reports.log(traceback.format_exc().encode())
            verdict = RestartDecision("failed", PEER_LOST, first_line(error))
        self._reports.say(f"{verdict.state}: {verdict.message}".rstrip(": "))
        # If the report has no exit code, the supervisor tries other machines.
        exit_code = None if verdict.exit_code in (PEER_LOST, NEVER_MET) else verdict.exit_code
        self._reports.update(state=verdict.state, exit_code=exit_code, message=verdict.message)
        return verdict.exit_code

    def stop(self) -> None:
        """Requests the end of the run, which first saves a checkpoint. Thread-safe."""
        self._stop.set()
        if (process := self._process) is not None:
            process.terminate()

    def _run_until_end(self, assignment: Assignment) -> RestartDecision:
        while True:
            self._reports.update(state="staging")
            self._stage(assignment)
            self._reports.update(state="running")
            ending = self._run_once(assignment)
            hosts = self._hosts(assignment)  # have the others reported, and do they run?
            starting = {n for n, host in hosts.reports.items() if host.state in _STARTING}
            verdict = self._restarts.judge(
                ending,
                saved=_newest_step(assignment.config),
                peers_ready=not ({*hosts.missing, *starting} - {self._host.worker}),
            )
            if verdict.pause is None or self._stop.is_set():
                self._reports.update(ending)
                if verdict.state != "restarting":
                    return verdict
                return RestartDecision("stopped", INTERRUPTED, ending.message)
            self._reports.say(
                f"exit code {ending.exit_code}: {ending.message}; restarting in {verdict.pause:g} s"
            )
            restarts = self._reports.status.restarts + 1
            self._reports.update(
                ending, state="restarting", message=verdict.message, restarts=restarts
            )
            if self._stop.wait(verdict.pause):
                raise _Stopped
            if decision := self._decision_of_peers(assignment, ending):
                return decision

    def _stage(self, assignment: Assignment) -> None:
        """Copies the datasets of a pretraining run to this machine, unless already cached."""

        def say(line: str) -> None:
            if self._stop.is_set():
                raise _Stopped
            self._reports.say(line)

        cache = DatasetCache(assignment.loader.cache, say=say)
        train = assignment.config.get("train") or {}
        for section in (*(train.get("phases") or ()), train.get("evaluation") or {}):
            for path in paths_of(section.get("dataset") or ()):
                if not is_google_bert(path):
                    cache.local(path)

    def _run_once(self, assignment: Assignment) -> Ending:
        command, environment = assignment.command, assignment.environment
        log = self._reports.log
        self._process = RunProcess(command, environment, heartbeat=self._heartbeat, log=log)
        if self._stop.is_set():
            self._process.terminate()
        try:
            return self._process.wait()
        finally:
            self._process = None

    def _hosts(self, assignment: Assignment) -> Hosts:
        """Returns the reports of all hosts. Returns none if they cannot be read."""
        with contextlib.suppress(UserError, RunStopped, OSError):
            if assignment.attempt.hosts > 1:
                return read_hosts(self._host.files, assignment.attempt)
        return Hosts({}, [])

    def _decision_of_peers(self, assignment: Assignment, ending: Ending) -> RestartDecision | None:
        """Returns the decision to end if another host has finished or failed, otherwise None."""
        hosts = self._hosts(assignment)
        if hosts.finished is not None:
            return RestartDecision("done", _DONE, f"host {hosts.finished} has finished the run")
        if ending.exit_code != PEER_LOST or hosts.failed is None:
            return None
        worker, status = hosts.failed
        code = PEER_LOST if status.exit_code is None else status.exit_code
        return RestartDecision("failed", code, f"host {worker}: {status.message}")


def _newest_step(config: Mapping[str, Any]) -> int:
    """Returns the step of a run's newest checkpoint, or -1 if there is no readable checkpoint."""
    try:
        found = (epath.Path(config["run_dir"]) / "checkpoints").iterdir()
        return max((int(path.name) for path in found if path.name.isdecimal()), default=-1)
    except Exception:  # storage clients raise errors of many types
        return -1


def run_agent(host: HostEnvironment, directory: Path) -> int:
    """Runs the agent of one host until its end or SIGTERM; returns the exit code.

    `directory`: directory of the run's heartbeat file.
    """
    heartbeat = directory / "heartbeat.json"
    reports = HeartbeatWriter(host, heartbeat)
    agent = Agent(host, reports, heartbeat)
    with SignalPipe(lambda _: agent.stop()), reports:  # SIGTERM does not interrupt the last upload
        return agent.run()


def main() -> int:
    """Runs the agent with settings from environment variables."""
    try:
        host = read_environment(os.environ)
    except UserError as error:
        sys.stderr.write(f"bert-jax: {error.line()}\n")
        return _MISTAKE
    with tempfile.TemporaryDirectory(prefix="bert_jax_host_") as directory:
        return run_agent(host, Path(directory))


if __name__ == "__main__":
    sys.exit(main())
