"""Worker processes of one machine: they score parts, and the main process may hold the devices."""

import collections
import contextlib
import multiprocessing
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

import numpy as np

from bert_jax.corpus.job import open_scored_model
from bert_jax.corpus.parts import InputPart
from bert_jax.corpus.program import Forward, IdleClock, Program
from bert_jax.corpus.results import PartSettings
from bert_jax.corpus.score_part import PartRecord, Progress, score_part
from bert_jax.corpus.section import ScoreSection
from bert_jax.data.worker_process import prepare_worker, without_main
from bert_jax.errors import KeyedError, RunStopped, first_line
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.pipelines.engines.local import use_one_thread
from bert_jax.task import Row

_COLLECT: Final = "collect"
_END_SECONDS: Final = 10.0  # time in which a worker without parts ends itself


class WorkerSettings(NamedTuple):
    """What a worker needs. Can be pickled."""

    part: PartSettings
    own_model: bool  # whether the worker runs the model itself, on one core
    environment: dict[str, str]


class _Remote:
    """The devices of the main process, see `Forward`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def submit(self, batch: Row) -> None:
        self._connection.send(batch)

    def collect(self) -> np.ndarray:
        self._connection.send(_COLLECT)
        return self._connection.recv()


def score_with_workers(
    parts: Sequence[InputPart],
    settings: PartSettings,
    *,
    workers: int,
    program: Callable[[], Program] | None,
    report: Callable[[Progress], None],
) -> Iterator[PartRecord]:
    """Yields the records of parts in the order in which they finish.

    If `program` is None, each worker runs the model on one core. Otherwise, the workers send
    batches to this process, which computes them with a program of `program`.

    Raises the first error of a part; the other parts stop without an output. Raises RunStopped if
    the system kills a worker.
    """
    todo = collections.deque(parts)
    done: queue.SimpleQueue[PartRecord | BaseException | None] = queue.SimpleQueue()
    environment = dict(os.environ)
    if program is None:
        # One thread per worker: threads of several workers would wait for each other.
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    started = WorkerSettings(settings, program is None, environment)
    count = min(workers, len(parts))
    with contextlib.ExitStack() as stack, without_main():
        for _ in range(count):
            worker = stack.enter_context(_worker(started))
            arguments = (worker, todo, program and program(), report, done)
            threading.Thread(target=_converse, args=arguments, daemon=True).start()
        ended = 0
        while ended < count:
            found = done.get()
            if isinstance(found, BaseException):
                todo.clear()
                raise found
            if found is None:
                ended += 1
            else:
                yield found


@contextlib.contextmanager
def _worker(settings: WorkerSettings) -> Iterator[Connection]:
    """Yields the connection to a new process, which ends with the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, settings), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
        process.join(_END_SECONDS)
    finally:
        process.terminate()
        process.join()
        ours.close()


def _converse(
    connection: Connection,
    todo: "collections.deque[InputPart]",
    program: Program | None,
    report: Callable[[Progress], None],
    done: "queue.SimpleQueue[PartRecord | BaseException | None]",
) -> None:
    """Gives parts to a worker, and computes its batches."""
    try:
        while True:
            try:
                connection.send(todo.popleft())
            except IndexError:
                connection.send(None)
                done.put(None)
                return
            while not isinstance(message := connection.recv(), PartRecord):
                if isinstance(message, Progress):
                    report(message)
                elif isinstance(message, BaseException):
                    raise message
                elif message == _COLLECT:
                    assert program is not None
                    connection.send(program.collect())
                else:
                    assert program is not None
                    program.submit(message)
            done.put(message)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        done.put(
            RunStopped(
                "score.worker_killed",
                "the system killed a worker, probably for lack of memory. Use fewer score.workers.",
            )
        )
    except BaseException as error:
        done.put(error)


def _work(connection: Connection, settings: WorkerSettings) -> None:
    """Runs in a worker: scores the parts that it receives."""
    os.environ.update(settings.environment)
    prepare_worker(0, 1)
    use_one_thread()
    forward: Forward | None = None
    while (part := connection.recv()) is not None:
        try:
            if forward is None:
                own = settings.own_model
                forward = open_program(settings.part.section) if own else _Remote(connection)
            record = score_part(part, settings.part, forward, report=_reporter(connection, forward))
        except KeyedError as error:
            connection.send(error)
            return
        except Exception as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {first_line(error)}"
            connection.send(RunStopped("score.worker_failed", reason, place=part.file.path))
            return
        connection.send(record)


def _reporter(connection: Connection, forward: Forward) -> Callable[[Progress], None]:
    """Returns a function that sends progress, with the waiting time of this worker's program."""
    clock = forward.clock if isinstance(forward, Program) else None
    before = clock.waited if clock else 0.0

    def report(progress: Progress) -> None:
        nonlocal before
        now = clock.waited if clock else 0.0
        connection.send(progress._replace(waited=now - before))
        before = now

    return report


def open_program(section: ScoreSection) -> Program:
    """Returns a program of the model on the first device of this process."""
    import jax

    mesh = make_mesh(MeshSection(), jax.local_devices()[:1])
    return open_scored_model(section, mesh).program(IdleClock())
