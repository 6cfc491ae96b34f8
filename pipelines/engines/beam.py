"""Lists of jobs on an Apache Beam runner, a thin pipeline per list: docs/adr/0007-engines.md."""

import contextlib
import functools
import itertools
import logging
import os
import pickle
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, Self, TypeVar

import pydantic
from etils import epath

from bert_jax.data.cores import available_cores
from bert_jax.errors import UserError, did_you_mean, first_line, not_installed
from bert_jax.files.atomic import write_whole
from bert_jax.pipelines.engines.local import use_one_thread
from bert_jax.section import Section, Strings
from bert_jax.user_function import check_module

Job = TypeVar("Job")
Result = TypeVar("Result")

_DIRECT: Final = "DirectRunner"
# Beam looks for a name without a dot among its own list, from which this one is missing.
_FULL_NAMES: Final = {"DaskRunner": "apache_beam.runners.dask.dask_runner.DaskRunner"}

_STAGE: Final = "beam-"
_JOBS: Final = "jobs.pickle"
_STOP: Final = "stop"
_RESULT: Final = ".result"

_FIRST_POLL_SECONDS: Final = 0.2
_LONGEST_POLL_SECONDS: Final = 10.0


_SECRET: Final = re.compile("passw|passphrase|secret|token|credential|(api|private)_?key", re.I)
_IN_ADDRESS: Final = re.compile("://[^/@]*:[^/@]*@")
_IN_ENVIRONMENT: Final = re.compile(r"\$[A-Za-z_]\w*").fullmatch


class BeamSection(Section):
    """Which Apache Beam runner, and its options."""

    runner: str = _DIRECT
    """Beam's name of the runner, or ``module.Class``."""
    options: Strings = ()
    """Beam's own command line options, passed on unchanged: ``["--region=europe-west4"]``. A value
    ``$NAME`` is taken from the environment; a password or the like must be given so, since the
    settings are written down with the run."""

    @pydantic.field_validator("options")
    @classmethod
    def _no_secrets(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option, after in itertools.zip_longest(options, options[1:], fillvalue=""):
            name, equals, value = option.partition("=")
            value = value if equals else "" if after.startswith("--") else after
            secret = name.startswith("-") and _SECRET.search(name) and not _IN_ENVIRONMENT(value)
            if (value and secret) or _IN_ADDRESS.search(option):
                # Not a ValueError, whose message would show the value.
                raise UserError(
                    f"beam.options: found a secret in {name if equals else option.split('//')[0]}, "
                    "which would be written down with the run; allowed: a name in the environment, "
                    "such as --password=$PASSWORD"
                )
        return options


class BeamEngine:
    """Runs each list of jobs as one Beam pipeline: ``Create | Reshuffle | Map``.

    A context manager. An element is a job's number: jobs go to the workers, and results come back,
    as files in a directory, which every worker must be able to read and write.
    """

    def __init__(
        self, section: BeamSection, *, workers: int | None, directory: epath.PathLike
    ) -> None:
        """Checks the settings.

        Without ``workers``, the direct runner has a process per core. Only one engine at a time may
        use the directory, which is for jobs and results.

        Raises:
            UserError: Beam is not installed, no such runner, an option that Beam does not know,
                ``workers`` where the runner would ignore it.
        """
        self._runner = section.runner
        self._flags = (
            *(_from_environment(option) for option in section.options),
            *_default_flags(section, workers=workers),
        )
        self._directory = epath.Path(directory)
        _check_flags(self._flags, runner=_make_runner(section.runner))

    def __enter__(self) -> Self:
        self._remove_stages()  # of a run that was killed
        return self

    def __exit__(self, *raised: object) -> None:
        self._remove_stages()

    def _remove_stages(self) -> None:
        for path in self._directory.glob(f"{_STAGE}*"):
            path.rmtree(missing_ok=True)

    def run(
        self, function: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """Yields every job with ``function(job)``, in the order in which they are seen to finish.

        Beam repeats what seems lost, so a function may be called twice with one job, also at once.

        Raises:
            UserError: of the first job that raises one; no job is begun after that. Or there are
                jobs whose results did not arrive.
            Exception: of Beam, if a job raises anything else.
        """
        if not jobs:
            return
        stage = self._directory / f"{_STAGE}{uuid.uuid4().hex}"
        stage.mkdir(exist_ok=True)
        write_whole(stage / _JOBS, pickle.dumps((function, list(jobs))))
        pipeline = _in_background(lambda: self._run_pipeline(stage, len(jobs)))
        open_jobs = dict(enumerate(jobs))
        error: UserError | None = None
        try:
            for number, result in _results(stage, pipeline):
                job = open_jobs.pop(number)
                if isinstance(result, UserError):
                    error = error or result
                else:
                    yield job, result
        finally:
            # Also if the caller stops iterating: jobs that have not begun are skipped.
            (stage / _STOP).touch()
        if error is not None:
            raise error
        pipeline.result()  # raises what the pipeline has raised
        if open_jobs:
            raise UserError(
                f"{self._directory}: {len(open_jobs)} of {len(jobs)} jobs left no result; allowed: "
                f"an output that all workers of {self._runner} reach under this name"
            )

    def _run_pipeline(self, stage: epath.Path, count: int) -> None:
        beam = _import_beam()
        options = beam.options.pipeline_options.PipelineOptions(list(self._flags))
        pipeline = beam.Pipeline(
            runner=_FULL_NAMES.get(self._runner, self._runner), options=options
        )
        _ = (
            pipeline
            | "jobs" >> beam.Create([(str(stage), number) for number in range(count)])
            # Without it a runner may keep all of them together in one worker.
            | "spread" >> beam.Reshuffle()
            | "work" >> beam.Map(do_job)
        )
        pipeline.run().wait_until_finish()


def do_job(element: tuple[str, int]) -> None:
    """Does a job, given by directory and number; writes its result or ``UserError`` to a file.

    A ``UserError`` is a result: Beam would take it for a failure and do the job four times.
    """
    stage, number = element
    directory = epath.Path(stage)
    target = directory / f"{number}{_RESULT}"
    # No directory: this worker does not share the others' disk, which the engine reports.
    if not directory.exists() or (directory / _STOP).exists() or target.exists():
        return
    use_one_thread()
    function, jobs = _load_jobs(stage)
    try:
        result = function(jobs[number])
    except UserError as error:
        result = error
    write_whole(target, pickle.dumps(result))
    if isinstance(result, UserError):
        (directory / _STOP).touch()


@functools.lru_cache(maxsize=1)
def _load_jobs(stage: str) -> tuple[Callable[[Any], Any], list[Any]]:
    return pickle.loads((epath.Path(stage) / _JOBS).read_bytes())


def _in_background(function: Callable[[], None]) -> Future[None]:
    """Runs a function in a thread that, unlike a pool's, does not keep the process from ending."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:  # of any kind, or nobody would see the end
            done.set_exception(error)

    threading.Thread(target=run, name="beam", daemon=True).start()
    return done


def _results(stage: epath.Path, pipeline: Future[None]) -> Iterator[tuple[int, Any]]:
    seen: set[str] = set()
    started = time.monotonic()
    ended = False
    while not ended:
        # Short pipelines are polled often; polling a long one may cost money.
        seconds = _FIRST_POLL_SECONDS + (time.monotonic() - started) / 20
        ended = bool(wait([pipeline], min(seconds, _LONGEST_POLL_SECONDS)).done)
        for path in stage.iterdir():
            if path.suffix == _RESULT and path.name not in seen:
                seen.add(path.name)
                yield int(path.stem), pickle.loads(path.read_bytes())


def _default_flags(section: BeamSection, *, workers: int | None) -> list[str]:
    given = {option.partition("=")[0] for option in section.options}
    if "--runner" in given:
        raise UserError("beam.options: found --runner, allowed: beam.runner for that")
    if section.runner != _DIRECT:
        if workers is not None:
            raise UserError(
                f"workers: found {workers}, but beam.runner is {section.runner}; allowed: leave "
                "workers out, and that runner's own option in beam.options"
            )
        # Its bags hold 128 elements by default; a job is a minute's work.
        own = {"--dask_partition_size", "--dask_npartitions"}
        is_dask = section.runner.endswith("DaskRunner")
        return ["--dask_partition_size=1"] if is_dask and not given & own else []
    if workers is not None and "--direct_num_workers" in given:
        raise UserError(
            f"workers: found {workers}, but beam.options has --direct_num_workers; allowed: one of "
            "them"
        )
    defaults = {
        "--direct_running_mode": "multi_processing",
        "--direct_num_workers": str(workers or available_cores()),
        "--default_sdk_harness_log_level": "ERROR",
    }
    return [f"{name}={value}" for name, value in defaults.items() if name not in given]


def _make_runner(name: str) -> Any:
    """Returns a runner; importing it makes its options known to Beam."""
    beam = _import_beam()
    known = beam.options.pipeline_options.StandardOptions.KNOWN_RUNNER_NAMES
    allowed = sorted({*known, *_FULL_NAMES})
    if "." not in name and name not in allowed:
        raise UserError(
            f'beam.runner: found "{name}"{did_you_mean(name, allowed)}; allowed: '
            f"{', '.join(allowed)}, or module.Class"
        )
    if "." in name:
        check_module(name, key="beam.runner", found=name, allowed=("apache_beam",))
    try:
        return beam.runners.runner.create_runner(_FULL_NAMES.get(name, name))
    except (ImportError, AttributeError) as error:
        raise UserError(f"beam.runner: {name} cannot be imported ({first_line(error)})") from error


def _check_flags(flags: Sequence[str], *, runner: Any) -> None:
    """Makes sure that Beam knows every option; it would ignore unknown ones."""
    beam = _import_beam()

    def refuse(message: str) -> None:
        raise UserError(f"beam.options: {message}")

    def check(parser: Any) -> None:
        parser.error = refuse
        unknown = parser.parse_known_args(list(flags))[1]
        if unknown:
            name = unknown[0].partition("=")[0]
            names = [f"--{option}" for option in vars(parser.parse_known_args([])[0])]
            raise UserError(
                f'beam.options: found "{name}"{did_you_mean(name, names)}; allowed: the '
                f"options of Apache Beam {beam.__version__}"
            )

    if isinstance(runner, beam.runners.portability.portable_runner.PortableRunner):
        return  # its job server may know more
    options = beam.options.pipeline_options.PipelineOptions(list(flags))
    options.get_all_options(add_extra_args_fn=check)


def _from_environment(option: str) -> str:
    name, equals, value = option.rpartition("=")
    if not _IN_ENVIRONMENT(value):
        return option
    if (found := os.environ.get(value[1:])) is None:
        raise UserError(f"beam.options: {name} is to be {value}, which is not in the environment")
    return f"{name}{equals}{found}"


def _import_beam() -> Any:
    try:
        with _quiet():
            import apache_beam
            import apache_beam.runners.portability.portable_runner
    except ImportError as error:
        raise UserError(not_installed("apache-beam", "engine: beam", extra="beam")) from error
    return apache_beam


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences what Beam logs on import: that BigQuery is not available."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
