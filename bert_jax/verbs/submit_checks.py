"""Checks of `submit` before a request for machines: inputs, bucket, cloud, memory, cost."""

import dataclasses
import glob
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.remote import is_remote
from bert_jax.interop.sources import is_hub_name
from bert_jax.launch import preflight
from bert_jax.launch.dry_run import money
from bert_jax.launch.host_paths import Upload, task_paths
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.launch.launchers import cloud_clients
from bert_jax.launch.machine_checks import check_disk, check_machines
from bert_jax.launch.preflight import PreflightFinding
from bert_jax.objectives.registry import teacher_of
from bert_jax.train.schedule_segments import schedule_segments
from bert_jax.verbs.watch import Confirm, Say


@dataclasses.dataclass(frozen=True)
class PreparedJob:
    """A job before its files are written."""

    job: Job
    config: RunConfig  # configuration for the hosts
    uploads: Sequence[Upload]  # local files that hosts need


def checked_offline(prepared: PreparedJob, *, say: Say) -> PreparedJob:
    """Returns the job without unsuitable placements; needs no bucket and no network.

    Calls `say` with a line for each warning or problem. Raises UserError if the whole job or every
    placement has a problem.
    """
    job, config = prepared.job, prepared.config
    sizes: dict[str, tuple[int, int]] = {}
    if job.verb == "pretrain" and config.train is not None:
        sizes = dict(config.train.batch_sizes)
        schedule_segments(config.train, config.optimizer)  # may raise, as on the hosts
    elif job.verb == "finetune" and config.finetune is not None:
        sizes["finetune.batch_size"] = (config.finetune.batch_size, config.finetune.accumulation)
    findings = [
        *check_machines(job),
        *preflight.check_zones(job),
        *preflight.check_platform(job, config.mesh),
        *preflight.check_layout(job, config.mesh, sizes),
    ]
    left = _allowed(findings, job, say=say)
    return dataclasses.replace(prepared, job=job.model_copy(update={"placements": left}))


def checked_online(prepared: PreparedJob, *, planned: bool, say: Say) -> Job:
    """Returns the job with the placements that pass the checks of bucket, cloud and plan.

    With `planned`, adds the estimated hours of each placement. Raises the errors of
    `checked_offline`, and RunStopped if a service does not answer.
    """
    job, config = prepared.job, prepared.config
    if is_remote(job.submit.bucket or ""):
        say(f"{job.name}: checking access, bucket, data and quota")
    findings = [*_inputs(prepared), *preflight.check_bucket(job), *_cloud(job)]
    hours: dict[JobPlacement, float] = {}
    if planned and job.verb == "pretrain":
        findings += _plan(job.placements, config, hours, say=say)
    placements = tuple(
        each.model_copy(update={"estimated_hours": hours.get(each)})
        for each in _allowed(findings, job, say=say)
    )
    return job.model_copy(update={"placements": placements})


def _allowed(findings: Sequence[PreflightFinding], job: Job, *, say: Say) -> Sequence[JobPlacement]:
    """Returns the placements without problems. Prints findings, except `fine` and raised ones."""
    raised = None
    try:
        return preflight.refuse(findings, job.placements)
    except UserError as error:
        raised = error.line()
        raise
    finally:
        for finding in findings:
            error = finding.error
            is_raised = error is not None and error.line() == raised
            if finding.verdict != "fine" and not is_raised:
                where = f"{finding.placement.place}: " if finding.placement else ""
                say(f"{finding.verdict}: {where}{finding.line}")


def require_limit(job: Job, *, no_limit: bool) -> None:
    """Raises UserError if a cloud job has neither a cost limit nor `no_limit`, or has both."""
    cost = job.submit.limits.cost
    if job.submit.on == ("local",):
        return
    if cost is None and not no_limit:
        raise UserError(
            "submit.limit_missing",
            "missing. Give the maximum cost of the job in dollars, or --no-limit.",
            place="--max-cost",
        )
    if cost is not None and no_limit:
        raise UserError(
            "submit.two_limits",
            f"found with submit.limits.cost = {cost:,.2f}. Remove one of them.",
            place="--no-limit",
        )


def price_accepted(job: Job, confirm: Confirm) -> bool:
    """Asks the user to accept the job's price. A free job needs no question."""
    first, *others = job.placements
    if first.dollars_per_hour == 0.0:
        return True
    more = f" ({len(others)} other placements if it has no capacity)" if others else ""
    limit = job.submit.limits.cost
    at_most = f", at most ${limit:,.2f}" if limit is not None else ""
    return confirm(f"{job.name}: {first.place}: {money(first)}{at_most}{more}. Submit?")


def _inputs(prepared: PreparedJob) -> Sequence[PreflightFinding]:
    config = prepared.config
    if prepared.job.verb == "pretrain":
        datasets = {} if config.train is None else config.train.datasets
        others = _models({"objective.teacher": teacher_of(config.objective)})
        sizes: dict[str, int] = {}
        found = preflight.check_inputs(
            tokenizer=config.tokenizer, datasets=datasets, others=others, sizes=sizes
        )
        if config.loader.cache.directory is None:
            found += check_disk(prepared.job, sum(sizes.values()))
        return found
    others: dict[str, str] = {}
    if prepared.job.verb == "score" and config.score is not None:
        section = config.score
        others = _models({"score.model": section.model})
        plain = [path for path in section.input if not glob.has_magic(path)]
        others |= {f"score.input.{at}": path for at, path in enumerate(plain)}
    elif config.finetune is not None:
        section = config.finetune
        models = {"init_from": section.init_from, "distill_from": section.distill_from}
        others = _models({f"finetune.{key}": name for key, name in models.items()})
        targets = [entry.target for entry in prepared.uploads]
        for key, path in task_paths(config.finetune.task.model_dump()).items():
            if not path.startswith(tuple(targets)):
                others[f"finetune.task.{key}"] = path
    return preflight.check_inputs(tokenizer=None, datasets={}, others=others, sizes={})


def _models(named: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the paths of models by setting, without names on a hub."""
    return {key: name for key, name in named.items() if name and not is_hub_name(name)}


def _cloud(job: Job) -> Sequence[PreflightFinding]:
    if job.submit.launcher != "queued-resources" or job.submit.on == ("local",):
        return ()
    with cloud_clients():
        from bert_jax.launch.cloud_checks import check_accelerators, check_quotas
    return [*check_accelerators(job), *check_quotas(job)]


def _plan(
    placements: Sequence[JobPlacement],
    config: RunConfig,
    hours: dict[JobPlacement, float],
    *,
    say: Say,
) -> Iterator[PreflightFinding]:
    """Yields a finding for each cloud placement, and adds estimated hours to `hours`."""
    from bert_jax.planning.request import CannotPlan
    from bert_jax.verbs.plan import plan  # imports JAX

    console = Console(stderr=True)
    for placement in placements:
        if placement.topology is None:
            continue
        say(f"{placement.place}: compiling the run to plan it; --no-plan skips this")
        try:
            slices = placement.slices
            (found,) = plan(config, [placement.on], slices=slices, suggest=False, console=console)
        except (CannotPlan, RunStopped) as error:
            yield PreflightFinding("unknown", f"plan: {first_line(error)}", placement)
        except UserError as error:  # the run would raise it too
            yield preflight.wrong(error.located("plan"), placement)
        else:
            if not found.fits:
                error = UserError(
                    "submit.does_not_fit",
                    f"the run does not fit. See `bert-jax plan … --topology {placement.on}`.",
                    place="plan",
                )
                yield preflight.wrong(error, placement)
            elif found.hours is not None:
                hours[placement] = found.hours
                yield PreflightFinding("fine", "plan: it fits", placement)
