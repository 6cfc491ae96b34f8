"""What `submit` looks at before it asks for anything: inputs, bucket, cloud, memory, money."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.remote import is_remote
from bert_jax.interop.sources import is_hub_name
from bert_jax.launch import preflight
from bert_jax.launch.dry_run import money
from bert_jax.launch.host_paths import Upload, task_paths
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.launch.watching import Confirm, Say
from bert_jax.launch.zones import check_zones


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A job before anything of it is written."""

    job: Job  # to submit
    config: RunConfig  # that hosts get
    uploads: Sequence[Upload]  # of files of this machine that they read


def checked_offline(prepared: Prepared, *, say: Say) -> Prepared:
    """Returns the job with the places that suit it; needs no bucket and no network.

    `say` gets a line for each finding that is not as it should be.

    Raises:
        UserError: something is wrong with the job, or with every place.
    """
    job, inputs = prepared.job, inputs_of(prepared)
    findings = [
        *check_zones(job),
        *preflight.check_platform(job, inputs.mesh),
        *preflight.check_layout(job, inputs),
    ]
    left = _left(findings, job, say=say)
    return dataclasses.replace(prepared, job=job.model_copy(update={"placements": left}))


def checked(prepared: Prepared, *, planned: bool, say: Say) -> Job:
    """Returns the job with the places that bucket, cloud and plan allow, and hours where planned.

    `say` gets a line for each finding that is not as it should be.

    Raises:
        UserError: something is wrong with the job, or with every place.
        RunStopped: a service does not answer.
    """
    job, config, inputs = prepared.job, prepared.config, inputs_of(prepared)
    if is_remote(job.submit.bucket or ""):
        say(f"{job.name}: checking access, bucket, data and quota")
    findings = [*preflight.check_inputs(inputs), *preflight.check_bucket(job)]
    findings += _of_cloud(job)
    hours: dict[JobPlacement, float] = {}
    if planned and job.verb == "pretrain":
        findings += _of_plan(job.placements, config, hours, say=say)
    left = _left(findings, job, say=say)
    placements = tuple(
        each.model_copy(update={"estimated_hours": hours.get(each)}) for each in left
    )
    return job.model_copy(update={"placements": placements})


def _left(
    findings: Sequence[preflight.PreflightFinding], job: Job, *, say: Say
) -> Sequence[JobPlacement]:
    """Returns the placements that no finding is against; `say` gets a line for each finding.

    Raises UserError if none is left.
    """
    try:
        left = preflight.refuse(findings, job.placements)
    except UserError as error:
        _tell((each for each in findings if each.line != str(error)), say)
        raise
    _tell(findings, say)
    return left


def require_limit(job: Job, *, no_limit: bool) -> None:
    """Raises UserError unless the cost of a job has a limit, or is said to have none."""
    cost = job.submit.limits.cost
    if job.submit.on == ("local",):
        return
    if cost is None and not no_limit:
        raise UserError(
            "--max-cost: missing; allowed: the most that the job may cost in dollars, or --no-limit"
        )
    if cost is not None and no_limit:
        raise UserError(
            f"--no-limit: found a limit of ${cost:,.2f} too (submit.limits.cost), allowed: one of "
            "them"
        )


def _tell(findings: Iterable[preflight.PreflightFinding], say: Say) -> None:
    for finding in findings:
        if finding.verdict != "fine":
            where = f"{finding.placement.place}: " if finding.placement else ""
            say(f"{finding.verdict}: {where}{finding.line}")


def may_start(job: Job, confirm: Confirm) -> bool:
    """Asks whether a job may cost what it will; where it costs nothing there is no question."""
    first, *others = job.placements
    if first.dollars_per_hour == 0.0:
        return True
    more = f" ({len(others)} other places if that has none)" if others else ""
    limit = job.submit.limits.cost
    kept = f", at most ${limit:,.2f}" if limit is not None else ""
    return confirm(f"{job.name}: {first.place}: {money(first)}{kept}{more}. Ask for it?")


def inputs_of(prepared: Prepared) -> preflight.Inputs:
    """Returns what a run reads, and how it is cut."""
    config, verb = prepared.config, prepared.job.verb
    train = config.train if verb == "pretrain" else None
    phases = {} if train is None else dict(enumerate(train.phases))
    sizes = {} if train is None else train.batch_sizes
    others: dict[str, str] = {}
    if verb == "finetune" and config.finetune is not None:
        section = config.finetune
        sizes = {"finetune.batch_size": (section.batch_size, section.accumulation)}
        origin = config.finetune.init_from
        if not is_hub_name(origin):
            others = {"finetune.init_from": origin}
        uploaded = tuple(each.target for each in prepared.uploads)
        for key, path in task_paths(config.finetune.task.model_dump()).items():
            if not path.startswith(uploaded or "\0"):
                others[f"finetune.task.{key}"] = path
    return preflight.Inputs(
        tokenizer=config.tokenizer if verb == "pretrain" else None,
        datasets={f"train.phases.{at}.dataset": phase.dataset for at, phase in phases.items()},
        others=others,
        batch_sizes=sizes,
        mesh=config.mesh,
    )


def _of_cloud(job: Job) -> Sequence[preflight.PreflightFinding]:
    if job.submit.launcher != "queued-resources" or job.submit.on == ("local",):
        return ()
    from bert_jax.launch.cloud_checks import check_accelerators, check_quotas

    return [*check_accelerators(job), *check_quotas(job)]


def _of_plan(
    placements: Sequence[JobPlacement],
    config: RunConfig,
    hours: dict[JobPlacement, float],
    *,
    say: Say,
) -> Iterator[preflight.PreflightFinding]:
    """Yields what `plan` says of each placement; writes down its hours."""
    from bert_jax.planning.request import CannotPlan
    from bert_jax.verbs.plan import plan  # brings JAX with it

    console = Console(stderr=True)
    for placement in placements:
        if placement.topology is None:
            continue
        say(f"{placement.place}: planning, which compiles the run (--no-plan: without it)")
        try:
            slices = placement.slices
            (found,) = plan(config, [placement.on], slices=slices, suggest=False, console=console)
        except (CannotPlan, RunStopped) as error:
            yield preflight.PreflightFinding("unknown", f"plan: {first_line(error)}", placement)
            continue
        except UserError as error:  # the hosts would refuse it too
            yield preflight.PreflightFinding("wrong", f"plan: {first_line(error)}", placement)
            continue
        if not found.fits:
            line = f"plan: the run does not fit, see `bert-jax plan … --topology {placement.on}`"
            yield preflight.PreflightFinding("wrong", line, placement)
        elif found.hours is not None:
            hours[placement] = found.hours
            yield preflight.PreflightFinding("fine", "plan: it fits", placement)
