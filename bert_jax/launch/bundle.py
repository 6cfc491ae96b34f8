"""All that a job's hosts read, staged into its directory before any host is asked for."""

import hashlib
import sys
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.launch.job import RUN_JOB, Job, JobFiles
from bert_jax.launch.wheel import PACKAGE, build_wheel, constraints, wheel_name

HASHES: Final = "SHA256SUMS"
"""Of the files beside it, as `sha256sum --check` reads them; written last."""


def startup_script() -> str:
    """Returns ``tpu_setup/startup.sh``, which comes with the package."""
    return (PACKAGE / "tpu_setup" / "startup.sh").read_text(encoding="utf-8")


def software() -> dict[str, bytes]:
    """Returns what hosts install, by file name: wheel, constraints, Python's version, script.

    Raises:
        UserError: the package is not installed here.
    """
    return {
        wheel_name(): build_wheel(),
        "constraints.txt": constraints().encode(),
        "python-version": f"{sys.version_info[0]}.{sys.version_info[1]}\n".encode(),
        "startup.sh": startup_script().encode(),
    }


def stage(job: Job, config: str) -> JobFiles:
    """Writes a job's directory; ``job.json`` comes last, so one that has it is complete.

    The run's directory then names its job, so that `bert-jax status RUN` finds it at once. The
    configuration is YAML, resolved.

    Raises:
        UserError: a job of that name is there, or the bucket cannot be written.
        RunStopped: the bucket does not answer.
    """
    files = JobFiles(job.directory)
    if files.job.exists():
        raise UserError(f"{job.directory}: there is such a job already; allowed: another --name")
    staged = software()
    for name, raw in staged.items():
        write_whole(files.software / name, raw)
    digests = [f"{hashlib.sha256(raw).hexdigest()}  {name}\n" for name, raw in staged.items()]
    write_whole(files.software / HASHES, "".join(digests))
    write_whole(files.config, config)
    write_whole(files.job, job.model_dump_json(indent=1))
    write_whole(epath.Path(job.run_dir) / RUN_JOB, f"{files.directory}\n")
    return files
