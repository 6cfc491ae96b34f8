"""Checks that the inputs of a configuration exist and fit together. Does not import JAX."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from etils import epath

from bert_jax.corpus.parts import find_parts
from bert_jax.corpus.section import ScoreSection
from bert_jax.data.dataset.provenance import PROVENANCE_NAME, read_provenance, split_unknown
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.dataset.schema import check_row_length
from bert_jax.data.google_bert.reader import is_google_bert
from bert_jax.data.loader.mask_share import measure_masks
from bert_jax.diagnostics.findings import Finding, ok, warn
from bert_jax.errors import UserError, counted
from bert_jax.files.hub import is_dataset_file, library
from bert_jax.files.read import read_json_object
from bert_jax.files.remote import is_remote
from bert_jax.interop.sources import CONFIGS, is_checkpoint, is_hub_name
from bert_jax.model.section import ModelSection
from bert_jax.objectives import registry
from bert_jax.objectives.sections import masked_rows
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.runs import settings
from bert_jax.section import at, under
from bert_jax.tasks.section import FinetuneSection, TaskSection
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.special_rows import MASKS
from bert_jax.text.vocabulary import split_at_masks
from bert_jax.train.schedule_segments import schedule_segments
from bert_jax.workflows.pretraining_settings import PhaseSection, TrainSection

VALIDATION: Final = "validation"

Check = tuple[str, Callable[[], str]]  # subject; function that returns a text or raises UserError


def require_inputs(checks: Iterator[Check], mesh: MeshSection) -> None:
    """Raises the UserError of the first check that fails, before JAX is loaded.

    With several processes, does nothing. Each process checks its inputs after it has joined the
    others, because the others would wait for a process that failed before.
    """
    if mesh.distributed.enabled:
        return
    for _, check in checks:
        check()


def pretraining_inputs(
    *,
    tokenizer: str,
    model: ModelSection | None,
    objective: registry.Registered,
    train: TrainSection,
    optimizer: OptimizerSection,
) -> Iterator[Check]:
    """Yields checks of the inputs of `pretrain`: tokenizer, model, schedule, datasets.

    `model` is None if another run defines the network.
    """
    loaded: list[Tokenizer] = []

    def check_tokenizer() -> str:
        loaded.append(load_tokenizer(tokenizer))
        return f"{tokenizer}, {loaded[0].vocab_size:,} pieces"

    def check_model() -> str:
        if model is None or not loaded:  # doctor continues after a missing tokenizer
            return "not checked"
        found = model.resolve(vocab_size=loaded[0].vocab_size, padding_id=loaded[0].special.pad)
        for index, phase in enumerate(train.phases):
            key = f"train.phases.{index}"
            phase.check_positions(found.max_position_embeddings, key=key)
            phase.architecture_changes(found, key=key)
            (phase.objective or objective).check_sizes(found)
        return f"{found.max_position_embeddings} positions"

    def check_schedule() -> str:
        segments = "; then ".join(each.describe() for each in schedule_segments(train, optimizer))
        return f"{train.total_steps:,} steps; learning rate: {segments}"

    def check_dataset(path: str, index: int, *, place: str, evaluation: bool = False) -> str:
        phase = train.phases[index]
        if is_remote(path):
            return f"{path} is not checked before the run opens it"
        if is_google_bert(path):
            return f"{path} is read as TFRecords"
        with at(place):
            made = read_provenance(epath.Path(path))
            if evaluation and VALIDATION not in made.splits:
                raise split_unknown(path, VALIDATION, made.splits)
            if loaded:
                made.require_tokenizer(loaded[0].hash, place=path)
        if phase.seq_length < made.pairing.max_seq_length:  # examples may still be short enough
            with at(place) if evaluation else under(f"train.phases.{index}", PhaseSection):
                for split in (VALIDATION,) if evaluation else made.splits:
                    check_row_length(phase.seq_length, open_dataset(path, split).lengths)
        registry.check_pairing(
            phase.objective or objective,
            made.pairing.kind,
            dataset=path,
            key=place,
            evaluation=evaluation,
        )
        counts = ", ".join(f"{split.examples:,} of {name}" for name, split in made.splits.items())
        return f"{path}, {counts} examples"

    yield "tokenizer", check_tokenizer
    yield "model", check_model
    yield "schedule", check_schedule
    if (teacher := registry.teacher_of(objective)) is not None and is_hub_name(teacher):
        yield "objective", lambda: _unread(teacher)
    for index, phase in enumerate(train.phases):
        for path in phase.paths:
            place = phase.path_key(f"train.phases.{index}", path)
            yield "dataset", partial(check_dataset, path, index, place=place)
    shortest = min(range(len(train.phases)), key=lambda index: train.phases[index].seq_length)
    for place, path in train.evaluation.by_key.items() if train.evaluation else ():
        check = partial(check_dataset, path, shortest, place=place, evaluation=True)
        yield "dataset", check


def _unread(path: str) -> str:
    """Says that a file or model elsewhere is not read. Raises UserError without its library."""
    if is_hub_name(path) or is_dataset_file(path):
        library()
    return f"{path} is not checked before the run fetches it"


def check_masks(
    train: TrainSection, *, tokenizer: str, objective: registry.Registered, seed: int
) -> Iterator[Finding]:
    """Yields a finding for each local dataset whose words a phase masks.

    Skips inputs that other checks refuse.
    """
    for phase, root in ((each, path) for each in train.phases for path in each.paths):
        masking = registry.masking_of(phase.objective or objective)
        if masking is None or is_remote(root) or not (epath.Path(root) / PROVENANCE_NAME).exists():
            continue
        try:
            rows = masked_rows(
                load_tokenizer(tokenizer),
                masking,
                seq_length=phase.seq_length,
                max_predictions=phase.max_predictions,
                max_examples=1,
                pairs=False,
            )
            found = measure_masks(open_dataset(root, "train"), rows, seed=seed)
        except UserError:
            continue
        if found is not None:
            yield (warn if found.low else ok)("masks", f"{root}: {found.describe()}")


def finetuning_inputs(section: FinetuneSection) -> Iterator[Check]:
    """Yields checks of the inputs of `finetune`: the models and the task's files."""
    fits = partial(_check_positions, section)
    yield "init_from", lambda: check_origin(section.init_from, fits)
    if (teacher := section.distill_from) is not None:
        yield "distill_from", lambda: check_origin(teacher, fits)
    for name, path in section.task.inputs.items():
        yield "task", partial(_check_input, section.task, name, path)


def score_inputs(section: ScoreSection) -> Iterator[Check]:
    """Yields checks of the inputs of `score`: the model and the files."""
    yield "model", lambda: check_origin(section.model)

    def check_files() -> str:
        local = [pattern for pattern in section.input if not is_remote(pattern)]
        if not local:
            return _unread(section.input[0])
        return f"found {counted(len(find_parts(local, part_bytes=section.part_bytes)), 'part')}"

    yield "input", check_files


def check_origin(origin: str, fits: Callable[[Any], None] = lambda architecture: None) -> str:
    """Describes the run or model that a run starts from. Raises UserError if it does not exist.

    Passes the architecture to `fits`, if the model is on this machine.
    """
    if is_remote(origin) or is_hub_name(origin):
        return _unread(origin)
    root = epath.Path(origin)
    if is_checkpoint(origin):
        for name in CONFIGS:
            if (root / name).exists():
                fits(read_json_object(root / name))
        return f"{origin} is imported when the run starts"
    if not (root / settings.CONFIG).exists():
        raise settings.missing_run(root, allowed=settings.RUN_OR_CHECKPOINT)
    model = settings.read_settings(root).get("model")
    if isinstance(model, dict):
        fits(model.get("architecture"))
    return f"{origin} is a run"


def _check_positions(section: FinetuneSection, architecture: Any) -> None:
    """Checks that rows fit the model's positions. Skips models without this setting."""
    if isinstance(architecture, dict):
        positions = architecture.get("max_position_embeddings")
        if isinstance(positions, int):
            section.check_positions(positions)


def require_fill_mask_inputs(source: str, texts: Sequence[str]) -> None:
    """Raises UserError if a text has no mask, or a local run has no MLM head."""
    for text in texts:  # the run's tokenizer accepts one of the spellings
        split_at_masks(text, *MASKS)
    root = epath.Path(source)
    if is_remote(source) or is_hub_name(source):
        return
    if (root / settings.CONFIG).exists():
        settings.require_mlm_head(
            settings.read_model(root, settings.read_settings(root)).heads, name=source
        )
    elif not root.is_dir() and not any(root.parent.glob("*.index")):  # TensorFlow checkpoints
        raise settings.missing_run(root, allowed=settings.RUN_OR_CHECKPOINT)


def _check_input(task: TaskSection, name: str, path: str) -> str:
    if is_remote(path):
        return _unread(path)
    with under("finetune", FinetuneSection):
        task.check_input(name)
    return f"found {path}"
