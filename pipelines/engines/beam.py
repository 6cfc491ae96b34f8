"""Runs lists of jobs on an Apache Beam runner, one small pipeline per list.

The reasons are in docs/adr/0007-engines.md.
"""

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
from typing import Any, Final, Self, TypeVar

import pydantic
from etils import epath

from bert_jax.data.worker_process import available_cores
from bert_jax.errors import UserError, did_you_mean, first_line, not_installed
from bert_jax.files.atomic import write_whole
from bert_jax.pipelines.engines.local import use_one_thread
from bert_jax.section import Section, Strings
from bert_jax.user_function import check_module

Job = TypeVar("Job")
Result = TypeVar("Result")

_DIRECT: Final = "DirectRunner"
# Beam looks up names without a dot in a fixed list, which lacks this runner.
_FULL_NAMES: Final = {"DaskRunner": "apache_beam.runners.dask.dask_runner.DaskRunner"}

_OPTIONS: Final = "examples.beam.options"
_RUNNER: Final = "examples.beam.runner"

_STAGE: Final = "beam-"  # prefix of the directory of a list of jobs, with the three files below
_JOBS: Final = "jobs.pickle"
_STOP: Final = "stop"
_RESULT: Final = ".result"

_SECRET: Final = re.compile("passw|passphrase|secret|token|credential|(api|private)_?key", re.I)
_IN_ADDRESS: Final = re.compile("://[^/@]*:[^/@]*@")
_IN_ENVIRONMENT: Final = re.compile(r"\$[A-Za-z_]\w*").fullmatch


class BeamSection(Section):
    """Apache Beam's runner and its options."""

    runner: str = _DIRECT
    """Name of a runner that Beam knows, or ``module.Class``."""
    options: Strings = ()
    """Beam's own command line options: ``["--region=europe-west4"]``. A value ``$NAME`` is read
    from the environment. Passwords and other secrets must have this form, because the settings are
    saved with the run."""

    @pydantic.field_validator("options")
    @classmethod
    def _no_secrets(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option, after in itertools.zip_longest(options, options[1:], fillvalue=""):
            name, equals, value = option.partition("=")
            value = value if equals else "" if after.startswith("--") else after
            secret = name.startswith("-") and _SECRET.search(name) and not _IN_ENVIRONMENT(value)
            if (value and secret) or _IN_ADDRESS.search(option):
                # Not a SettingError: pydantic would show the secret in its message.
                found = name if equals else option.split("//")[0]
                raise UserError(
                    "beam.secret",
                    f"found a secret, {found}. Use an environment variable: --password=$PASSWORD.",
                    place=_OPTIONS,
                )
        return options


class BeamEngine:
    """Context manager that runs each list of jobs as a Beam pipeline: ``Create | Reshuffle | Map``.

    The elements of the pipeline are indices of jobs. Jobs and results are files in a directory that
    every worker must be able to read and write.
    """

    def __init__(
        self, section: BeamSection, *, workers: int | None, directory: epath.PathLike
    ) -> None:
        """Checks the settings.

        Args:
            section: runner and options.
            workers: number of processes of the direct runner. If None, one per core.
            directory: directory for jobs and results. Only one engine at a time may use it.

        Raises UserError if Beam is not installed, the runner or an option is unknown, or the
        runner would ignore ``workers``.
        """
        self._runner = section.runner
        self._flags = [
            *(_from_environment(option) for option in section.options),
            *_default_flags(section, workers=workers),
        ]
        self._directory = epath.Path(directory)
        _check_flags(self._flags, runner=_make_runner(section.runner))

    def __enter__(self) -> Self:
        self.__exit__()  # removes the files of a killed run
        return self

    def __exit__(self, *raised: object) -> None:
        for path in self._directory.glob(f"{_STAGE}*"):
            path.rmtree(missing_ok=True)

    def run(
        self, function: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """Yields ``(job, function(job))`` in the order in which results arrive.

        Beam repeats jobs that seem lost, so a job may run twice, even at the same time.

        Raises UserError if a job raises it, or if a result is missing at the end. For other
        exceptions of a job, raises Beam's exception. After the first error, no new job starts.
        """
        if not jobs:
            return
        stage = self._directory / f"{_STAGE}{uuid.uuid4().hex}"
        stage.mkdir(exist_ok=True)
        write_whole(stage / _JOBS, pickle.dumps((function, list(jobs))))
        failed: list[BaseException] = []
        # A daemon thread, unlike a pool's thread, does not keep the process alive.
        pipeline = threading.Thread(
            target=self._run_pipeline, args=(stage, len(jobs), failed), name="beam", daemon=True
        )
        pipeline.start()
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
            # Also runs if the caller stops iterating. The workers then skip the remaining jobs.
            (stage / _STOP).touch()
        if error is not None or failed:
            raise error or failed[0]
        if open_jobs:
            raise UserError(
                "beam.no_result",
                f"{len(open_jobs)} of {len(jobs)} jobs left no result. Can all workers reach it?",
                place=self._directory,
            )

    def _run_pipeline(self, stage: epath.Path, count: int, failed: list[BaseException]) -> None:
        try:
            beam = _import_beam()
            options = beam.options.pipeline_options.PipelineOptions(self._flags)
            runner = _FULL_NAMES.get(self._runner, self._runner)
            pipeline = beam.Pipeline(runner=runner, options=options)
            _ = (
                pipeline
                | "jobs" >> beam.Create([(str(stage), number) for number in range(count)])
                # Without the reshuffle a runner may give all jobs to one worker.
                | "spread" >> beam.Reshuffle()
                | "work" >> beam.Map(do_job)
            )
            pipeline.run().wait_until_finish()
        except BaseException as error:  # the caller raises it after the thread has ended
            failed.append(error)


def do_job(element: tuple[str, int]) -> None:
    """Runs the job ``(directory, number)`` and writes its result or UserError to a file.

    Beam would repeat a job that raises, so a UserError is written as a result.
    """
    stage, number = element
    directory = epath.Path(stage)
    target = directory / f"{number}{_RESULT}"
    # If the disk is not shared, this directory is missing, and `BeamEngine.run` finds no result.
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


def _results(stage: epath.Path, pipeline: threading.Thread) -> Iterator[tuple[int, Any]]:
    seen: set[str] = set()
    started, running = time.monotonic(), True
    while running:
        # The interval grows with the pipeline's age, because a bucket may charge for each poll.
        pipeline.join(min(0.2 + (time.monotonic() - started) / 20, 10.0))
        running = pipeline.is_alive()
        for path in stage.iterdir():
            if path.suffix == _RESULT and path.name not in seen:
                seen.add(path.name)
                yield int(path.stem), pickle.loads(path.read_bytes())


def _default_flags(section: BeamSection, *, workers: int | None) -> list[str]:
    given = {option.partition("=")[0] for option in section.options}
    if "--runner" in given:
        raise UserError.wrong(
            "beam.runner_option", "--runner", "the setting examples.beam.runner", place=_OPTIONS
        )
    if section.runner != _DIRECT:
        if workers is not None:
            raise UserError(
                "beam.workers_ignored",
                f"found {workers}, but {section.runner} ignores it. Set its own beam.options.",
                place="workers",
            )
        # By default Dask puts 128 jobs into a partition, so most workers would get none.
        own = {"--dask_partition_size", "--dask_npartitions"}
        is_dask = section.runner.endswith("DaskRunner")
        return ["--dask_partition_size=1"] if is_dask and not given & own else []
    if workers is not None and "--direct_num_workers" in given:
        raise UserError(
            "beam.workers_twice",
            f"found {workers}, but beam.options has --direct_num_workers. Set only one of them.",
            place="workers",
        )
    defaults = {
        "--direct_running_mode": "multi_processing",
        "--direct_num_workers": str(workers or available_cores()),
        "--default_sdk_harness_log_level": "ERROR",
    }
    return [f"{name}={value}" for name, value in defaults.items() if name not in given]


def _make_runner(name: str) -> Any:
    """Returns the runner. Importing it also registers its options with Beam."""
    beam = _import_beam()
    known = beam.options.pipeline_options.StandardOptions.KNOWN_RUNNER_NAMES
    allowed = sorted({*known, *_FULL_NAMES})
    if "." not in name and name not in allowed:
        raise UserError.unknown("beam.runner", name, [*allowed, "module.Class"], place=_RUNNER)
    if "." in name:
        check_module(name, key=_RUNNER, found=name, allowed=("apache_beam",))
    try:
        return beam.runners.runner.create_runner(_FULL_NAMES.get(name, name))
    except (ImportError, AttributeError) as error:
        raise UserError(
            "beam.runner_import", f"{name} cannot be imported ({first_line(error)})", place=_RUNNER
        ) from error


def _check_flags(flags: list[str], *, runner: Any) -> None:
    """Raises UserError for an option that Beam does not know and would ignore."""
    beam = _import_beam()

    def refuse(message: str) -> None:
        raise UserError("beam.option", f"rejected by Apache Beam: {message}", place=_OPTIONS)

    def check(parser: Any) -> None:
        parser.error = refuse
        if unknown := parser.parse_known_args(flags)[1]:
            name = unknown[0].partition("=")[0]
            names = [f"--{option}" for option in vars(parser.parse_known_args([])[0])]
            raise UserError(
                "beam.option_unknown",
                f'found "{name}", unknown to Apache Beam{did_you_mean(name, names)}',
                place=_OPTIONS,
            )

    if isinstance(runner, beam.runners.portability.portable_runner.PortableRunner):
        return  # the runner's job server may know more options
    options = beam.options.pipeline_options.PipelineOptions(flags)
    options.get_all_options(add_extra_args_fn=check)


def _from_environment(option: str) -> str:
    name, equals, value = option.rpartition("=")
    if not _IN_ENVIRONMENT(value):
        return option
    if (found := os.environ.get(value[1:])) is None:
        raise UserError(
            "beam.environment",
            f"found {name}={value}, but the environment has no such variable",
            place=_OPTIONS,
        )
    return f"{name}{equals}{found}"


def _import_beam() -> Any:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # Beam's import logs that BigQuery is not available
    try:
        import apache_beam
        import apache_beam.runners.portability.portable_runner
    except ImportError as error:
        raise not_installed("apache-beam", "engine: beam", extra="beam") from error
    finally:
        root.setLevel(level)
    return apache_beam
