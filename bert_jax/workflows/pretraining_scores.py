"""Evaluates a pretrained checkpoint on every example of a dataset."""

from collections.abc import Callable
from typing import Final

import jax

from bert_jax.data.dataset.cache import CacheSection, DatasetCache
from bert_jax.data.loader.section import LoaderSection
from bert_jax.errors import UserError
from bert_jax.inference.lengths import bucket_of, buckets_up_to
from bert_jax.narration import doing
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.same_settings import require_same
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import batch_parts
from bert_jax.runs.evaluation import Evaluation
from bert_jax.runs.open_checkpoints import load_params, own_model, read_checkpoints
from bert_jax.runs.run_directory import Run
from bert_jax.task import TRAINING_PARTS, Task
from bert_jax.train.evaluation_section import held_out_key
from bert_jax.train.frozen import check_frozen, load_frozen
from bert_jax.train.state import ModelDefinition, define_model
from bert_jax.workflows.objective_of_run import objective_of, objective_section
from bert_jax.workflows.phases import fingerprints_of, make_evaluator, open_source
from bert_jax.workflows.pretraining_settings import PhaseSection, TrainSection

BATCH_SIZE: Final = 32  # rows per batch of imported runs, which have no train section


def evaluate_objective(
    run: Run,
    *,
    dataset: str | None,
    split: str,
    checkpoint: str,
    ema: bool = False,
    batch_size: int | None,
    mesh: MeshSection | None,
    say: Callable[[str], None],
) -> Evaluation:
    """Evaluates a checkpoint of a pretrained or imported run.

    See `bert_jax.evaluate` for the other arguments. `say` prints a message while a dataset is
    copied from a bucket. Raises UserError if the checkpoint, dataset or split does not exist, an
    imported run is evaluated without a dataset, or an example has more tokens than the model has
    positions.
    """
    # Refuses a model without the heads before its parameters are read.
    define = _own_or_trained(objective_of(run))
    phase, rows, cache, seed = None, BATCH_SIZE, CacheSection(), 0
    paths = {} if dataset is None else {"": dataset}
    if run.has("train"):
        section = run.section("train", TrainSection, verb="evaluate")
        phase = section.phases[-1]
        rows, seed = section.evaluation_rows(phase), section.evaluation_seed(run.seed)
        if not paths and section.evaluation is not None:
            paths = section.evaluation.held_out
        if not paths and isinstance(phase.dataset, str):
            paths = {"": phase.dataset}
    if not paths:
        why = "was imported" if phase is None else "mixes datasets"
        raise UserError("evaluate.no_dataset", f"needed: {run.directory} {why}", place="--dataset")
    loaded = load_params(run, checkpoint=checkpoint, ema=ema, mesh=open_mesh(mesh), define=define)
    run = run.of_phase(loaded.architecture, causal=loaded.heads.causal)
    task = objective_of(run, phase=loaded.phase)
    if run.has("loader"):
        cache = run.section("loader", LoaderSection, verb="evaluate").cache
    sources = {
        name: open_source(
            path,
            split,
            objective=objective_section(run, phase=loaded.phase),
            tokenizer=run.tokenizer,
            cache=DatasetCache(cache, say=say),
            key=held_out_key(name) if name else "dataset",
            evaluation=True,
        )
        for name, path in paths.items()
    }
    found = {"step": loaded.step, "tokenizer": run.tokenizer.hash}
    require_same({"run_dir": found, "dataset": fingerprints_of(sources)})
    parts, model = batch_parts(loaded.mesh), define_model(task.build)
    datasets = [source.dataset for source in sources.values()]
    examples = sum(map(len, datasets))
    score = make_evaluator(
        sources,
        task,
        model,
        loaded.mesh,
        seq_length=_seq_length(run, phase, longest=max(int(d.lengths.max()) for d in datasets)),
        max_predictions=phase and phase.max_predictions,
        rows=-(-(batch_size or rows) // parts) * parts,
        seed=seed,
    )
    with jax.set_mesh(loaded.mesh), doing(f"evaluating {examples:,} examples"):
        params = {part: loaded.params[part] for part in model.params}
        frozen = load_frozen(task, loaded.mesh)
        if frozen.hashes:
            saved = read_checkpoints(run.directory, lambda found: found.progress(loaded.step))
            check_frozen(saved.get("frozen", {}), frozen.hashes, place=run.directory)
        scores = score(params, frozen.params)
    return Evaluation(loaded.step, ", ".join(paths.values()), split, examples, scores)


def _own_or_trained(task: Task) -> Callable[[Run], ModelDefinition]:
    """Returns `own_model`, or if `task` has parts for training alone, a function with them."""
    if not set(TRAINING_PARTS).intersection(define_model(task.build).params):
        return own_model
    return lambda run: define_model(objective_of(run).build)


def _seq_length(run: Run, phase: PhaseSection | None, *, longest: int) -> int:
    """Returns the row length; imported runs use the length bucket of the longest example."""
    if phase is not None:
        return phase.seq_length
    positions = run.architecture.max_position_embeddings
    if longest > positions:
        raise UserError.wrong(
            "evaluate.example_too_long", f"{longest} tokens", positions, place="--dataset"
        )
    return bucket_of(longest, buckets_up_to(positions))
