"""Sets up a fine-tuning run: opens its checkpoint and data, and checks them."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import jax
import optax
from etils import epath
from flax.traverse_util import flatten_dict
from rich.console import Console

from bert_jax.data.host_share import ONE_HOST, HostShare
from bert_jax.encoders.kernel_choice import SLOWER, execution_on
from bert_jax.errors import UserError, commas, counted
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.layer_stack import default_unroll
from bert_jax.model.section import Execution
from bert_jax.model.shape_cost import training_cost
from bert_jax.narration import doing, narrator_of
from bert_jax.optim.finetuning import frozen_parameters, make_finetune_optimizer
from bert_jax.parallel.mesh import initialise, make_mesh
from bert_jax.parallel.same_settings import require_same
from bert_jax.parallel.section import check_batch
from bert_jax.parallel.sharding_rules import batch_parts
from bert_jax.runs.open_checkpoints import load_params, run_of_checkpoint
from bert_jax.runs.run_directory import (
    Run,
    claim_run,
    open_run,
    read_run_provenance,
    write_run,
)
from bert_jax.runs.setting_changes import find_changes, refuse_other_settings
from bert_jax.section import under
from bert_jax.task import Params
from bert_jax.tasks.batches import TrainBatches
from bert_jax.tasks.distillation import DistilledTask, open_task_teacher
from bert_jax.tasks.family import DataRequest, Family, hub_files
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.section import FinetuneSection, FinetuneSettings
from bert_jax.tasks.task import FinetuneTask
from bert_jax.text import Tokenizer
from bert_jax.train.sections import BadStepsSection, WatchdogSection
from bert_jax.train.state import DrawParams, ModelDefinition, define_model
from bert_jax.train.trackers import require_trackers

# Settings that may change when a run or a sweep resumes. They change results only after bad steps.
FREE: Final = (
    "finetune.log_every",
    "finetune.trackers",
    "finetune.report_sentence",
    "finetune.checksum_every",
    *(f"finetune.bad_steps.{name}" for name in BadStepsSection.model_fields),
    "finetune.watchdog",
    *(f"finetune.watchdog.{name}" for name in WatchdogSection.model_fields),
)

TASK_HEAD: Final = "task"
"""Name of the task head among the parameters."""
EMBEDDING_HEAD: Final = "embedding"
"""Name of the head of sentence embeddings among the parameters."""

# Settings that determine the rows of a run and their order.
DATA: Final = r"seed|content\..*|finetune\.(split_seed|max_length|task\..*)"


class TrainingSetup(NamedTuple):
    """A prepared fine-tuning run."""

    settings: FinetuneSettings
    origin: Run
    family: Family
    architecture: EncoderArchitecture
    task: FinetuneTask
    execution: Execution  # settings to store in the run directory
    model: ModelDefinition
    mesh: jax.sharding.Mesh

    @property
    def section(self) -> FinetuneSection:
        """The settings of the `finetune` section."""
        return self.settings.finetune

    @property
    def accumulation(self) -> int:
        """Number of microbatches that the train step makes of a batch."""
        return self.section.accumulation // self.task.chunks

    @property
    def content(self) -> dict[str, str]:
        """The fingerprint of each split."""
        return self.family.content

    def decisive(self) -> dict[str, Any]:
        """Returns the settings and data that determine the results, as plain values."""
        return {**self.settings.decisive(), "content": self.content}

    def origin_record(self, root: epath.Path) -> dict[str, Any]:
        """Returns the entries of provenance.json.

        If the run in `root` had other data, the entries list the changed fingerprints.
        """
        found: dict[str, Any] = {"init_from": self.section.init_from, "content": self.content}
        if files := hub_files(self.section.task):
            found["files"] = {role: file.record for role, file in files.items()}
        held = read_run_provenance(root)
        changes = [
            {"content": change.key, "was": change.was, "now": change.now}
            for change in find_changes(held.get("content", self.content), self.content)
        ]
        if changes := [*held.get("changes", []), *changes]:
            found["changes"] = changes
        return found

    def write_run(self, folder: epath.Path, *, root: epath.Path, origin: Mapping[str, Any]) -> None:
        """Writes the files of a run directory; see `bert_jax.runs.run_directory.write_run`."""
        write_run(
            folder,
            self.settings.to_config(),
            run_dir=str(root),
            execution=self.execution,
            heads=self.family.heads,
            architecture=self.architecture,
            tokenizer=self.origin.tokenizer,
            origin=origin,
        )

    def batches(self, *, seed: int, share: HostShare = ONE_HOST) -> TrainBatches:
        """Returns the training batches. `share` is this host's part of them."""
        section = self.section
        return TrainBatches(
            self.family.splits["train"],
            batch_size=section.batch_size,
            max_length=section.max_length,
            seed=seed,
            pad_id=self.origin.tokenizer.special.pad,
            unit=batch_parts(self.mesh) * section.accumulation,
            share=share,
            cost=training_cost(
                self.architecture, self.mesh, max_length=section.max_length, epochs=section.epochs
            ),
        )

    def optimizer(self) -> optax.GradientTransformationExtraArgs:
        """Returns the run's optimizer."""
        return make_finetune_optimizer(
            self.section.optimizer,
            self.model.axes,
            groups=self.model.groups,
            depth=self.architecture.num_hidden_layers,
        )

    def predictor(self) -> Predictor:
        """Returns the predictor of the dev splits."""
        section = self.section
        return Predictor(
            self.model,
            self.mesh,
            batch_size=section.microbatch,
            max_length=section.max_length,
            pad_id=self.origin.tokenizer.special.pad,
            architecture=self.architecture,
            # + 1: the best checkpoint is evaluated again.
            passes=section.epochs * section.evaluations_per_epoch + 1,
        )


def prepare(settings: FinetuneSettings) -> TrainingSetup:
    """Opens the origin and the data. Raises UserError if they or the devices do not match."""
    section = settings.finetune
    require_trackers(section.trackers, key="finetune.trackers")
    origin = open_run(settings.origin)
    section.check_positions(origin.architecture.max_position_embeddings)
    request = DataRequest(
        origin.tokenizer,
        section.max_length,
        section.split_seed,
        text_head=origin.heads.text_head,
    )
    with under("finetune", FinetuneSection), doing("reading and encoding the task's files"):
        family = section.task.open(request)
    origin = run_of_checkpoint(origin, checkpoint="auto")
    family = dataclasses.replace(family, heads=origin.model.of_task(family.heads))
    if family.heads.mlm and not origin.heads.mlm:
        raise UserError(
            "finetune.no_mlm_head",
            f"{section.task.kind} needs an MLM head, as in google-bert/bert-base-uncased",
            place="finetune.init_from",
        )
    if not len(family.splits["train"].lengths):
        raise UserError.wrong(
            "finetune.no_examples", "no training example", "one or more", place="finetune.task"
        )
    architecture = origin.architecture
    if section.dropout is not None:
        architecture = architecture.with_dropout(section.dropout)
    initialise(settings.mesh)
    found = {"tokenizer": origin.tokenizer.hash, "model": origin.model.model_dump(mode="json")}
    require_same({"finetune.init_from": found, "finetune.task": family.content})
    mesh = make_mesh(settings.mesh)
    execution, resolved = execution_on(
        mesh,
        section.executed(origin.model.execution),
        architecture=architecture,
        longest=section.max_length,
        chosen=section.dtype is not None,
        say=lambda line: None,
    )
    cost = training_cost(architecture, mesh, max_length=section.max_length, epochs=section.epochs)
    tokens = float(family.splits["train"].lengths.sum()) * cost.passes
    if execution.unroll is None and tokens < cost.program:
        # By default, the loop over layers is unrolled on a TPU. Unrolling halves the step time, but
        # compiling takes 1.5 times as long. A short run does not recover that.
        scanned = default_unroll(architecture.num_hidden_layers, on_tpu=False)
        resolved = resolved.model_copy(update={"unroll": scanned})
    # Store the origin's kernel settings: runs that start from this model choose their own.
    kept = origin.model.execution.model_copy(update={"dtype": execution.dtype})
    parts, accumulation = batch_parts(mesh), section.accumulation
    check_batch("finetune.batch_size", section.batch_size, parts=parts, accumulation=accumulation)
    task = _task(
        section,
        settings.teacher,
        origin.tokenizer,
        rows=len(family.splits["train"].lengths),
        architecture=architecture,
        execution=resolved,
        heads=family.heads,
        class_weights=family.class_weights,
    )
    task.check_rows(family.splits["train"])
    definition = define_model(task.build)
    task = _frozen(task, section, definition)
    return TrainingSetup(settings, origin, family, architecture, task, kept, definition, mesh)


def claim(prepared: TrainingSetup) -> epath.Path:
    """Returns the run directory. Creates it if necessary.

    Raises UserError if it contains a run with other settings, another model or other labels.
    """
    settings = prepared.settings
    root = claim_run(
        settings.run_dir,
        verb="finetune",
        architecture=prepared.architecture,
        tokenizer=prepared.origin.tokenizer,
    )
    if not (root / "config.yaml").exists():
        return root
    run = open_run(root)
    section = run.section("finetune", FinetuneSection, verb="finetune")
    held = {
        "seed": run.seed,
        "finetune": section.model_dump(mode="json"),
        "content": read_run_provenance(root).get("content", prepared.content),
    }
    asked = prepared.decisive()
    changed = [change.key for change in find_changes(held, asked)]
    data = [key for key in changed if re.fullmatch(DATA, key)]
    free = [*FREE, *(data if settings.allow_data_change else ())]
    refuse_other_settings(root, held=held, asked=asked, free=free, with_flag=data, what="run")
    new, old = prepared.family.heads.labels, run.heads.labels
    if new != old:
        raise UserError.wrong(
            "finetune.other_labels", commas(new), f"the run's {commas(old)}", place="finetune.task"
        )
    return root


def show_data(prepared: TrainingSetup, console: Console) -> None:
    """Prints the splits, the notes, and the parts of the model that start from fresh parameters."""
    if jax.process_index() != 0:
        return
    family, origin = prepared.family, prepared.origin
    sizes = ", ".join(f"{name} {split.examples:,}" for name, split in family.splits.items())
    lines = [f"examples: {sizes}", *family.notes, *remarks(prepared.section, family)]
    dtype = prepared.execution.dtype
    if prepared.section.dtype is None and dtype != origin.model.execution.dtype:
        lines.append(SLOWER)
    if fresh := _fresh_modules(prepared):
        verb = "starts" if len(fresh) == 1 else "start"
        lines.append(f"{' and '.join(fresh)} {verb} fresh")
    for line in lines:
        narrator_of(console).say(line)


def _fresh_modules(prepared: TrainingSetup) -> list[str]:
    """Returns the titles of the modules whose parameters the origin lacks."""
    learnt = set(define_model(prepared.origin.build).params)
    learnt -= _unshared(prepared)
    task = f"the {(prepared.family.heads.task or '').replace('_', '-')} head"
    titles = prepared.model.groups.titles | {TASK_HEAD: task}
    return [titles[part] for part in titles if part in prepared.model.params.keys() - learnt]


def origin_params(prepared: TrainingSetup, abstract: Params, draw: DrawParams) -> Params:
    """Returns the origin's parameters on the run's mesh. Missing parameters are initialised.

    If the origin has the same task and labels, keeps its task head (SQuAD 1.1 before 2.0).
    """
    origin = prepared.origin
    params = load_params(origin, checkpoint="auto", mesh=prepared.mesh).params
    unshared = _unshared(prepared)
    found = {part: params[part] for part in abstract if part in params and part not in unshared}
    return found | draw({part: abstract[part] for part in abstract if part not in found})


def _unshared(prepared: TrainingSetup) -> set[str]:
    """Returns the heads that start fresh, because the origin's have other labels or parameters."""
    ours, theirs = prepared.family.heads, prepared.origin.heads
    found = set[str]()
    if (ours.task, ours.labels) != (theirs.task, theirs.labels):
        found.add(TASK_HEAD)
    # Of equal widths, the projection of sentence embeddings alone has a bias.
    heads = [(type(head), head and head.parameters) for head in (ours.text_head, theirs.text_head)]
    if heads[0] != heads[1]:
        found.add(EMBEDDING_HEAD)
    return found


def _task(
    section: FinetuneSection, teacher: str | None, tokenizer: Tokenizer, *, rows: int, **parts: Any
) -> FinetuneTask:
    if teacher is not None:
        return DistilledTask(
            teacher=open_task_teacher(
                teacher,
                student=parts["architecture"],
                execution=parts["execution"],
                heads=parts["heads"],
                max_length=section.max_length,
            ),
            temperature=section.distill_temperature,
            weight=section.distill_weight,
            tokenizer=tokenizer,
            **parts,
        )
    steps = -(-rows // section.batch_size) * section.epochs
    return section.task.train_task(accumulation=section.accumulation, steps=steps, **parts)


def _frozen(task: FinetuneTask, section: FinetuneSection, model: ModelDefinition) -> FinetuneTask:
    if not section.optimizer.freeze:
        return task
    depth = task.architecture.num_hidden_layers
    with under("finetune", FinetuneSection):
        frozen = frozen_parameters(section.optimizer, model.axes, groups=model.groups, depth=depth)
    names = flatten_dict(frozen, sep="/").items()
    return dataclasses.replace(task, frozen=frozenset(name for name, held in names if held))


_MANY_EPOCHS: Final = 40  # more passes over the data than in BERT's pretraining


def remarks(section: FinetuneSection, family: Family) -> Iterator[str]:
    """Yields a line for each setting that has no effect, or an effect that nobody wants."""
    train, task = family.splits["train"], section.task
    rows = len(train.lengths)
    if section.batch_size > rows:
        yield (
            f"finetune.batch_size: {section.batch_size} is more than the {rows:,} training rows: "
            "each step has all rows, and an epoch is one step"
        )
    if section.epochs > _MANY_EPOCHS:
        yield (
            f"finetune.epochs: {section.epochs:,} passes over {counted(rows, 'training row')}, "
            "usual are 2 to 10. The model will remember the rows instead of learning from them"
        )
    evaluations = section.epochs * section.evaluations_per_epoch
    if section.patience is not None and section.patience >= evaluations:
        yield (
            f"finetune.patience: {section.patience} has no effect, because the run has "
            f"{counted(evaluations, 'evaluation')}"
        )
    if "dev" in task.inputs:
        of_split = {"finetune.split_seed": section, "finetune.task.dev_fraction": task}
        for name, owner in of_split.items():
            field = type(owner).model_fields.get(name.rpartition(".")[2])
            if field is not None and getattr(owner, name.rpartition(".")[2]) != field.default:
                yield f"{name}: has no effect, because finetune.task.dev is set"
    for name in family.dev:
        if family.splits[name].fingerprint == train.fingerprint:
            yield (
                f"{name}: the same rows as in the training set. Its scores show what the model "
                "remembers. Use other rows"
            )
