"""Turns a configuration into checked, immutable settings of a run. Does not import JAX."""

import time
from typing import Any, Final

from etils import epath

from bert_jax.config import RunConfig, require_training
from bert_jax.data.worker_process import available_cores
from bert_jax.diagnostics.inputs import finetuning_inputs, pretraining_inputs, require_inputs
from bert_jax.errors import UserError
from bert_jax.model.section import ModelSection
from bert_jax.runs.settings import CONFIG, read_settings
from bert_jax.section import need
from bert_jax.tasks.family import pinned
from bert_jax.tasks.section import FinetuneSettings
from bert_jax.verbs import starting_jax
from bert_jax.workflows.pretraining_settings import PretrainSettings

# Limits of the loader's worker processes on a machine.
_FEW_WORKERS: Final = 16
_WORKERS_PER_CORE: Final = 4


def pretrain_settings(
    config: RunConfig,
    *,
    init_from: str | None = None,
    allow_data_change: bool = False,
    started: float | None = None,
) -> PretrainSettings:
    """Checks the inputs and returns the settings of `bert_jax.pretrain`.

    Raises UserError if a section or an input is missing, or an input does not fit.
    """
    require_training(config, "train", verb="pretrain")
    tokenizer = need(config.tokenizer, "tokenizer", "pretrain")
    model = need(config.model, "model", "pretrain")
    train = need(config.train, "train", "pretrain")
    run_dir = need(config.run_dir, "run_dir", "pretrain")
    own = model if init_from is None else None  # the other model defines the rest of the network
    inputs = pretraining_inputs(
        tokenizer=tokenizer,
        model=own,
        objective=config.objective,
        train=train,
        optimizer=config.optimizer,
    )
    require_inputs(inputs, config.mesh)
    workers, most = config.loader.workers, max(_FEW_WORKERS, _WORKERS_PER_CORE * available_cores())
    if workers > most:  # too many to start in a useful time
        raise UserError.wrong("loader.workers", workers, f"at most {most}", place="loader.workers")
    return PretrainSettings(
        train=train,
        tokenizer=tokenizer,
        model=model,
        objective=config.objective,
        optimizer=config.optimizer,
        loader=config.loader,
        init_from=init_from,
        **_common(config, run_dir, allow_data_change=allow_data_change, started=started),
    )


def finetune_settings(
    config: RunConfig, *, allow_data_change: bool = False, started: float | None = None
) -> FinetuneSettings:
    """Checks the inputs and returns the settings of `bert_jax.finetune`.

    Raises UserError if a section is missing or belongs to pretraining, or an input is missing or
    does not fit.
    """
    require_training(config, "finetune", verb="finetune")
    section = need(config.finetune, "finetune", "finetune")
    run_dir = need(config.run_dir, "run_dir", "finetune")
    require_inputs(finetuning_inputs(section), config.mesh)
    if config.model is not None and not _is_resolved(run_dir, config.model):
        raise UserError(
            "finetune.model",
            "finetune.init_from defines the model. Set finetune.dropout or finetune.dtype.",
            place="model",
        )
    # Refuse settings of pretraining, except defaults: a resolved configuration contains them.
    replaced = {
        "optimizer": "finetune.optimizer",
        "train": "finetune",
        "objective": "finetune.task",
    }
    for name, allowed in {**replaced, "loader": "none"}.items():
        if getattr(config, name) != RunConfig.model_fields[name].default:
            raise UserError(
                "finetune.pretraining_section",
                f"found settings of pretraining, allowed with finetune: {allowed}",
                place=name,
            )
    with starting_jax():
        from bert_jax.verbs.import_checkpoint import find_origin
    origin = find_origin(section.init_from, mesh=config.mesh)
    names = {"init_from": origin.name, "task": pinned(section.task)}
    teacher = None
    if section.distill_from is not None:
        found = find_origin(section.distill_from, mesh=config.mesh)
        teacher, names["distill_from"] = found.run_dir, found.name
    return FinetuneSettings(
        finetune=section.model_copy(update=names),
        origin=origin.run_dir,
        teacher=teacher,
        **_common(config, run_dir, allow_data_change=allow_data_change, started=started),
    )


def _common(
    config: RunConfig, run_dir: str, *, allow_data_change: bool, started: float | None
) -> dict[str, Any]:
    """Returns the fields of `RunSettings`."""
    return {
        "seed": config.seed,
        "run_dir": run_dir,
        "mesh": config.mesh,
        "config": config.model_dump(mode="json"),
        "allow_data_change": allow_data_change,
        "started": started or time.time(),
    }


def _is_resolved(run_dir: str, model: ModelSection) -> bool:
    """Returns whether `model` is the resolved model of the run directory's configuration."""
    root = epath.Path(run_dir)
    return (root / CONFIG).exists() and read_settings(root).get("model") == model.model_dump(
        mode="json"
    )
