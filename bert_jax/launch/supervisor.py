"""Watches a job to its end: requests machines, replaces lost machines, deletes all machines.

The supervisor keeps its state in the bucket, so it may be killed and restarted anywhere at any
time. Before it requests machines, it saves the attempt, whose number is part of the machines' name.
Before it deletes machines, it saves the reason. Every request is idempotent.
"""

import contextlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Final

from etils import epath

from bert_jax.errors import NoCredentials, RunStopped, UserError, first_line
from bert_jax.files.lock import Lock, LockLost
from bert_jax.launch import retry_policy
from bert_jax.launch.heartbeat_reader import (
    HeartbeatAges,
    Hosts,
    RunProgress,
    read_hosts,
    total_steps,
)
from bert_jax.launch.job import JobFiles, read_job
from bert_jax.launch.launcher import Launcher, NotOurs, OutOfQuota, State
from bert_jax.launch.retry_policy import (
    AttemptRecord,
    Outcome,
    SupervisorState,
    read_state,
    write_state,
)

# Temporary errors of a bucket or service, such as expired credentials. The supervisor keeps the job
# and its machines, and retries.
_TEMPORARY_ERRORS = (RunStopped, UserError, OSError)
UNFORESEEN: Final = "retrying after an unexpected error"
"""Prefix of the line on an unexpected error."""

_LINE_SECONDS: Final = 60.0
_STATE_TEXTS: Final = {State.WAITING: "waiting for capacity", State.ABSENT: "no machines seen yet"}
_DUMP: Final = re.compile(r"bad_step_(\d+)")

_log: Final = logging.getLogger("bert_jax.launch")


class Supervisor:
    """Watches one job while this process holds its lease."""

    def __init__(
        self,
        files: JobFiles,
        launcher: Launcher,
        held: Lock,
        *,
        say: Callable[[str], None],
        pace: retry_policy.SupervisorLimits | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Reads the state of the job.

        `held`: the job's lease. `say`: called with each line to print. `pace`: by default,
        `SupervisorLimits` with the job's `poll_seconds`. Raises UserError if there is no such job.
        """
        self.job, self.state = read_job(files), read_state(files)
        self._files, self._launcher, self._lease = files, launcher, held
        self._say, self._clock, self._sleep = say, clock, sleep
        self._pace = pace or retry_policy.SupervisorLimits(poll=self.job.submit.poll_seconds)
        self._until_next_poll = self._pace.poll  # longer than `poll` while a bucket is down
        self._ages = HeartbeatAges()
        self._last_line, self._printed_at = "", -math.inf
        self._total_steps = total_steps(files.config)
        self._progress = RunProgress(self._total_steps, old_endings=bool(self.state.attempts))
        self._had_error = False  # whether the last poll had an error
        self._mistake: UserError | None = None

    def run(self, *, ask_only: bool = False) -> SupervisorState:
        """Watches until the job has ended and its machines are gone.

        With `ask_only`, returns after the request for machines. Raises UserError if the request was
        refused and only the user can fix it. Raises RunStopped if another supervisor has the lease,
        or the outcome cannot be saved.
        """
        while True:
            self._poll()
            record = self.state.current
            if ask_only and record is not None and record.created is not None:
                return self.state
            if self.state.outcome is not None and record is None:
                write_state(self._files, self.state)
                if self._mistake is not None:
                    raise self._mistake
                return self.state
            self._sleep_until_poll()

    def stop(self, why: str) -> None:
        """Ends the job. `run` then saves the outcome and deletes the machines."""
        if self.state.outcome is None:
            self._finish("stopped", why)

    def _sleep_until_poll(self) -> None:
        """Sleeps until the next poll, and prints a status line every minute."""
        left = self._pace.poll
        while left > 0.0:
            if self._clock() >= self._printed_at + self._pace.status:
                self._say(self._status_line())
                self._printed_at = self._clock()
            pause = min(left, _LINE_SECONDS)
            self._sleep(pause)
            left -= pause

    def _status_line(self) -> str:
        """Returns ``base-1: active, 4 hosts running, step 30, $1.20 so far``."""
        if not self.state.attempts:
            return f"{self.job.name}: no machines yet"
        record = self.state.attempts[-1]
        name = record.of(self.job).resource
        parts = [f"{name}: {_STATE_TEXTS.get(record.state, record.state.value)}"]
        if record.state in (State.ACTIVE, State.STARTING):
            parts += [text] if (text := self._progress.describe()) else []
        else:
            minutes = (self._clock() - (record.created or record.intended)) / 60
            parts.append(f"{minutes:.0f} min since the request")
        if any(placement.dollars_per_hour for placement in self.job.placements):
            dollars = self.state.dollars(self.job.placements, self._clock())
            parts.append(f"${dollars:,.2f} so far")
        left = self._progress.time_left() + (" (as last seen)" if self._had_error else "")
        return ", ".join(parts) + left

    def _poll(self) -> None:
        """Polls once: acts on the job's state, and saves it."""
        began, self._had_error = self._clock(), False
        try:
            self._lease.check()
        except LockLost:
            raise
        except _TEMPORARY_ERRORS as error:  # safe: without the bucket, `_begin` requests nothing
            self._print_change(f"retrying: {error}")
        with self._errors_logged():
            if self.state.outcome is None:
                self._advance()
            record = self.state.current
            if record is not None and record.end is not None:
                self._save_state()  # a deletion is slow: save the end for the next supervisor
                self._delete(record)
        self._save_state()
        self._until_next_poll = self._pace.poll + self._clock() - began

    def _advance(self) -> None:
        now, margin = self._clock(), self._until_next_poll
        limit = retry_policy.limit_hit(self.job, self.state, now=now, margin_seconds=margin)
        record = self.state.current
        if limit is not None:
            self._finish("limit", limit)
        elif self._is_asked_to_stop():
            self._finish("stopped", "by `bert-jax stop`")
        elif record is None:
            self._begin()
        elif record.end is None and record.created is None:
            self._create(record, asked=True)
        elif record.end is None:
            self._observe(record)

    def _begin(self) -> None:
        """Saves the next attempt, then requests its machines."""
        index = retry_policy.next_placement(self.job, self.state)
        if isinstance(index, str):
            return self._finish("limit", index)
        number = len(self.state.attempts) + 1
        record = AttemptRecord(number=number, placement=index, intended=self._clock())
        self._write(self.state.model_copy(update={"attempts": (*self.state.attempts, record)}))
        self._ages, self._progress = HeartbeatAges(), RunProgress(self._total_steps)
        return self._create(record, asked=False)

    def _create(self, record: AttemptRecord, *, asked: bool) -> None:
        """Requests machines. `asked`: whether an earlier request may already have succeeded."""
        attempt = record.of(self.job)
        try:
            self._launcher.create(attempt)
        except OutOfQuota as error:
            return self._end(retry_policy.Verdict("quota", str(error)))
        except UserError as error:
            if isinstance(error, NoCredentials) and (asked or record.number > 1):
                raise  # retry: the user may log in again
            self._mistake = error
            if not asked or isinstance(error, NotOurs):  # no machines of this attempt exist
                self._change(end="over", reason=str(error), deleted=self._clock())
            return self._finish("failed", str(error))
        self._print_change(f"attempt {record.number}: requested {attempt.placement.place}")
        return self._change(created=self._clock(), state=State.WAITING)

    def _observe(self, record: AttemptRecord) -> None:
        seen = self._launcher.observe(record.of(self.job))
        now = self._clock()
        changed = seen.state is not record.state
        self._change(state=seen.state, message=seen.message)
        if retry_policy.is_start(record, seen):
            self._change(up_from=now)
        hosts = None if seen.state is State.WAITING else self._hosts(record)
        if seen.state is not State.ACTIVE:
            self._ages.reset()  # starting hosts cannot send heartbeats
        there = seen.state in (State.STARTING, State.ACTIVE, State.SUSPENDED)
        if record.bills_from is None and (there or (hosts is not None and hosts.reports)):
            # Bill from the last poll without billing: count too much rather than too little.
            self._change(bills_from=max(record.created or now, min(self.state.seen, now)))
        record = self.state.attempts[-1]
        verdict = (hosts and retry_policy.run_verdict(hosts)) or retry_policy.machines_verdict(
            self.job, record, seen, now=now, pace=self._pace
        )
        if verdict is None and hosts is not None and seen.state is State.ACTIVE:
            verdict = retry_policy.silence_verdict(
                record, hosts, self._ages, now=now, pace=self._pace
            )
        # After the run is done, do not report that machines are gone.
        if changed and (verdict is None or verdict.outcome != "done"):
            self._print_change(f"{seen.state.value}{f': {seen.message}' if seen.message else ''}")
        if verdict is not None:
            self._end(verdict)

    def _hosts(self, record: AttemptRecord) -> Hosts | None:
        """Returns the hosts' reports, or None if they cannot be read."""
        try:
            hosts = read_hosts(self._files, record.of(self.job))
        except _TEMPORARY_ERRORS as error:
            self._print_change(f"cannot read the reports of the hosts: {error}")
            self._ages.reset()
            self._had_error = True
            return None
        self._ages.record(hosts, self._clock())
        for line in self._progress.update(hosts, self._clock()):
            self._print_change(line)
        if hosts.step is not None:
            self._change(step=hosts.step)
        return hosts

    def _end(self, verdict: retry_policy.Verdict) -> None:
        """Ends the attempt, and the job if its run has ended or another attempt would fail."""
        reason = verdict.reason
        if verdict.outcome is not None:
            dump = self._dump_hint(reason) if verdict.outcome == "failed" else ""
            return self._finish(verdict.outcome, reason + dump)
        self._print_change(f"{verdict.end}: {reason}")
        self._change(end=verdict.end, reason=reason)
        if (why := retry_policy.reason_to_give_up(self.job, self.state)) is not None:
            self._finish("failed", f"{why}: {reason}{self._dump_hint(reason)}")
        return None

    def _finish(self, outcome: Outcome, message: str) -> None:
        """Ends the job. Its machines are deleted even if the outcome cannot be saved."""
        record = self.state.current
        if record is not None and record.end is None:
            self._change(end="over", reason=message)
        self.state = self.state.model_copy(update={"outcome": outcome, "message": message})
        self._print_change(f"{outcome}: {message}")

    def _delete(self, record: AttemptRecord) -> None:
        if record.created is not None and record.state is not State.DELETING:
            self._change(state=State.DELETING)
            self._print_change("deleting the machines")
        try:
            self._launcher.delete(record.of(self.job))
        except UserError as error:
            raise UserError(
                "job.not_deleted", f"cannot delete the machines, which may cost money: {error}"
            ) from error
        self._change(deleted=self._clock(), state=State.ABSENT)
        if record.created is not None:
            self._print_change("machines deleted")

    def _is_asked_to_stop(self) -> bool:
        with contextlib.suppress(*_TEMPORARY_ERRORS):
            return self._files.stop.exists()
        return False

    def _dump_hint(self, reason: str) -> str:
        """Returns a hint with the dump of the last bad step, or "" without a dump."""
        run_dir = epath.Path(self.job.run_dir)
        try:
            found = [(_DUMP.fullmatch(path.name), path) for path in run_dir.iterdir()]
        except Exception:  # a bucket may raise any error, and the hint is optional
            return ""
        dumps = [(int(match[1]), str(path)) for match, path in found if match]
        dump = max(dumps, default=(0, ""))[1]
        return f"; see the dump {dump}" if dump and dump not in reason else ""

    @contextlib.contextmanager
    def _errors_logged(self) -> Iterator[None]:
        """Logs errors of the block. No error may end the supervisor: machines would bill on."""
        try:
            yield
        except _TEMPORARY_ERRORS as error:
            self._had_error = True
            self._print_change(f"retrying: {error}")
        except Exception as error:  # a bug in this program or in a client library
            self._had_error = True
            _log.debug("a poll failed", exc_info=True)
            self._print_change(f"{UNFORESEEN}: {type(error).__name__}: {first_line(error)}")

    def _save_state(self) -> None:
        """Saves the state. If that fails, the next poll saves it."""
        with self._errors_logged(), contextlib.suppress(*_TEMPORARY_ERRORS):
            self._write(self.state.model_copy(update={"seen": self._clock()}))

    def _change(self, **changes: object) -> None:
        self.state = self.state.with_last(**changes)

    def _write(self, state: SupervisorState) -> None:
        write_state(self._files, state)
        self.state = state

    def _print_change(self, line: str) -> None:
        """Prints a line, prefixed with the machines' name, unless it repeats the last line."""
        records = self.state.attempts
        name = records[-1].of(self.job).resource if records else self.job.name
        if (text := f"{name}: {line}") != self._last_line:
            self._last_line, self._printed_at = text, self._clock()
            self._say(text)
