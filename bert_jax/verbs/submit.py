"""`bert-jax submit`: runs a configuration on cloud machines or on this machine."""

import dataclasses
import os
import time
from typing import Any, Final

from bert_jax.config import (
    AnyConfig,
    RunConfig,
    as_config,
    dump_config,
    parse_config,
    require_training,
)
from bert_jax.errors import UserError
from bert_jax.files.remote import absolute
from bert_jax.launch import host_paths
from bert_jax.launch.bundle import software, stage, versions_line
from bert_jax.launch.dry_run import dry_run
from bert_jax.launch.gcloud import require_credentials, with_gcloud_settings
from bert_jax.launch.job import Job, JobFiles, Verb, job_directory, placements
from bert_jax.launch.launchers import launcher_for
from bert_jax.launch.preflight import check_bucket_name
from bert_jax.launch.retry_policy import SupervisorState, read_state
from bert_jax.launch.section import SubmitSection
from bert_jax.launch.supervisor import Supervisor
from bert_jax.planning.prices import load_prices
from bert_jax.section import need
from bert_jax.verbs import submit_checks
from bert_jax.verbs.watch import Confirm, Say, lease, outcome_line, unwatched_line, watch_job
from bert_jax.version import __version__

_NO_PROJECT: Final = "your-project"  # in the requests of a dry run without a project


def submit(
    config: AnyConfig,
    *,
    verb: Verb = "pretrain",
    watch: bool = False,
    prices: str | None = None,
    no_limit: bool = False,
    planned: bool = True,
    confirm: Confirm | None = None,
    say: Say = print,
    **overrides: Any,
) -> SupervisorState:
    """Requests machines, runs a configuration on them, and replaces lost machines.

    ``submit(load_config("base.yaml", ["submit.on=local", "submit.bucket=/tmp/jobs"]), watch=True)``

    Args:
        config: a configuration, a dict of its settings or its file, with `submit`. Relative paths
            are relative to the bucket. For `on: local`: to the working directory.
        verb: the verb that hosts run.
        watch: watch the job to its end, then delete its machines. Otherwise return after the
            request for machines: then only `bert_jax.watch` replaces and deletes them.
        prices: path of a custom price list.
        no_limit: allow any cost. If false, cloud jobs need `submit.limits.cost`.
        planned: whether to compile the run for its topologies first, to estimate memory and cost.
        confirm: callback that asks the user before the job costs money, and on Ctrl-C. Default:
            do not ask.
        say: callback for output lines.
        overrides: settings that replace the configuration's, see `bert_jax.pretrain`.

    Returns:
        The state of the job. Its outcome is None while the job runs.

    Raises:
        UserError: a setting does not fit, an input or a permission is missing.
        RunStopped: the run failed, or a limit was reached; no machines are left.
        KeyboardInterrupt: Ctrl-C was pressed and `watch` is false. A line on how to end the job is
            printed first.
    """
    confirm, config = confirm or (lambda question: True), as_config(config, overrides)
    prepared = prepare_job(config, verb=verb, prices=prices)
    launcher = launcher_for(prepared.job.submit)
    prepared = submit_checks.checked_offline(prepared, say=say)
    submit_checks.require_limit(prepared.job, no_limit=no_limit)
    require_credentials(prepared.job.submit.bucket or "")
    if config.submit is None or config.submit.name is None:
        prepared = _with_free_name(prepared)
    job = submit_checks.checked_online(prepared, planned=planned, say=say)
    if not submit_checks.price_accepted(job, confirm):
        raise UserError("submit.cancelled", "cancelled. Use --yes to skip the confirmation.")
    if (lock := job.submit.installed) is not None:
        say(f"{job.name}: hosts install {versions_line(lock)}")
    say(f"{job.name}: writing software and settings to {job.directory}")
    host_paths.upload(prepared.uploads, say=say)
    files = stage(job, dump_config(prepared.config))
    if watch:
        return watch_job(files, launcher, say=say, confirm=confirm)
    with lease(files, say=say) as held:
        try:
            state = Supervisor(files, launcher, held, say=say).run(ask_only=True)
        except KeyboardInterrupt:  # the request may already have been sent
            say(unwatched_line(files))
            raise
    say(unwatched_line(files))
    if state.outcome is not None:
        say(outcome_line(job, state))
    return state


def prepare_job(config: RunConfig, *, verb: Verb, prices: str | None) -> submit_checks.PreparedJob:
    """Returns the job of a configuration, and its hosts' configuration. Needs no network.

    Raises UserError if a setting is missing or does not fit.
    """
    if config.submit is None:
        raise UserError(
            "setting.needed",
            "missing, but submit needs it. Or name the machines: --on v5litepod-16.",
            place="submit",
        )
    section = config.submit
    local = section.on == ("local",)
    if not local:
        section = with_gcloud_settings(section)
    spot, listed = section.provisioning == "spot", load_prices(prices).chip_hour.items()
    rates = {chip: price.spot if spot else price.on_demand for chip, price in listed}
    priced = {chip: rate for chip, rate in rates.items() if rate is not None}
    found = placements(section, rates=priced)
    bucket = _bucket(section)
    if verb == "score":
        output = need(config.score, "score", "submit").output
        config = config.model_copy(update={"run_dir": output})
    else:
        key = "train" if verb == "pretrain" else "finetune"
        require_training(config, key, verb="submit")
        need(getattr(config, key), key, "submit")
    values = config.model_dump(mode="json")
    if values["run_dir"] is None:
        values["run_dir"] = f"runs/{section.name or 'run'}"
    uploads: list[host_paths.Upload] = []
    if local:
        values["run_dir"] = absolute(values["run_dir"])
    else:
        values = host_paths.for_hosts(values, bucket)
        if verb == "finetune":
            task, uploads = host_paths.for_upload(values["finetune"]["task"], bucket)
            values["finetune"] = values["finetune"] | {"task": task}
    name = section.name or host_paths.name_of(values["run_dir"])
    section = section.model_copy(update={"name": name, "bucket": bucket})
    values["submit"] = section.model_dump(mode="json")
    job = Job(
        name=name,
        verb=verb,
        run_dir=values["run_dir"],
        working_directory=os.getcwd() if local else None,
        submit=section,
        placements=found,
        version=__version__,
        submitted=time.time(),
    )
    return submit_checks.PreparedJob(job, parse_config(values, source="submit"), uploads)


def dry_run_text(
    config: RunConfig, *, verb: Verb = "pretrain", prices: str | None = None, full: bool = False
) -> str:
    """Returns cost and limits of a job without submitting it; `full` adds files and requests.

    Needs neither credentials nor a network. Raises UserError if the configuration does not fit.
    """
    warnings: list[str] = []
    prepared = prepare_job(config, verb=verb, prices=prices)
    prepared = submit_checks.checked_offline(prepared, say=warnings.append)
    section = prepared.job.submit
    if section.on != ("local",) and section.launcher != "gke" and section.project is None:
        section = section.model_copy(update={"project": _NO_PROJECT})
        warnings.append(f"warning: --project is missing: the requests name {_NO_PROJECT}")
    return dry_run(
        prepared.job,
        launcher_for(section),
        config=dump_config(prepared.config),
        software=software(prepared.job.submit.installed or "tpu"),
        uploads=prepared.uploads,
        warnings=warnings,
        full=full,
    )


def _bucket(section: SubmitSection) -> str:
    bucket = section.bucket
    if section.on == ("local",):
        if bucket is None:
            raise UserError(
                "submit.directory_missing",
                "missing. With --on local give a directory, such as --bucket /tmp/jobs.",
                place="--bucket",
            )
        return absolute(bucket)
    if bucket is None:
        raise UserError(
            "submit.bucket_missing",
            "missing. Give a bucket, such as --bucket gs://your-bucket.",
            place="--bucket",
        )
    if not bucket.startswith("gs://"):
        raise UserError(
            "submit.bucket_local",
            f"found {bucket}, allowed: gs://…, or a directory with --on local",
            place="--bucket",
        )
    check_bucket_name(bucket)
    return bucket.rstrip("/")


def _with_free_name(prepared: submit_checks.PreparedJob) -> submit_checks.PreparedJob:
    """Returns the job under a free name: ``base-2`` if the job ``base`` has ended."""
    job = prepared.job
    name, number = job.name, 1
    while (files := JobFiles(job_directory(job.submit.bucket or "", name))).job.exists():
        if read_state(files).outcome is None:
            raise UserError(
                "submit.running",
                f"this job still runs. Use `bert-jax stop {files.directory}` or another --name.",
                place=files.directory,
            )
        number += 1
        name = f"{job.name}-{number}"
    section = job.submit.model_copy(update={"name": name})
    return dataclasses.replace(
        prepared,
        job=job.model_copy(update={"name": name, "submit": section}),
        config=prepared.config.model_copy(update={"submit": section}),
    )
