"""Opens the data of a phase: a dataset of this package, or TFRecords of google-research/bert."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import optax
from jax.sharding import Mesh

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.data.dataset.provenance import PAIR_KINDS
from bert_jax.data.dataset.reader import Dataset, open_dataset
from bert_jax.data.dataset.schema import check_row_length
from bert_jax.data.google_bert.reader import (
    GoogleBertDataset,
    find_splits,
    is_google_bert,
    open_google_bert,
)
from bert_jax.data.loader.loader import Loader, evaluation_batches
from bert_jax.data.loader.mask_share import MaskShare
from bert_jax.data.rows.masking_transform import StaticMaskTransform
from bert_jax.errors import UserError
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.objectives.registry import check_pairing
from bert_jax.objectives.sections import ObjectiveSection
from bert_jax.parallel.mesh import process_share
from bert_jax.section import at, under
from bert_jax.task import Objective, RowTransform
from bert_jax.text import Tokenizer
from bert_jax.train.compiled import abstract_batch
from bert_jax.train.evaluation_section import held_out_key
from bert_jax.train.evaluations import Evaluator, HeldOut
from bert_jax.train.spec import Phase
from bert_jax.train.state import ModelDefinition, define_model
from bert_jax.train.step import StepSpec
from bert_jax.workflows.epochs import PhaseEpochs
from bert_jax.workflows.phase_data import PhaseData
from bert_jax.workflows.pretraining_settings import PhaseSection, PretrainSettings

TRAIN: Final = "train"
VALIDATION: Final = "validation"


@dataclasses.dataclass(frozen=True)
class ExampleSource:
    """An opened split, checked against the objective and the tokenizer."""

    dataset: Dataset | GoogleBertDataset
    tokenizer: Tokenizer

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of all splits of the dataset."""
        if isinstance(self.dataset, Dataset):
            return tuple(self.dataset.provenance.splits)
        return tuple(find_splits(self.dataset.directory))

    @property
    def lacking(self) -> set[str]:
        """Names of the losses of pair tasks for which the examples have no labels."""
        kind = self.dataset.provenance.pairing.kind if isinstance(self.dataset, Dataset) else "nsp"
        return {f"{each}_loss" for each in PAIR_KINDS if each != kind}

    def features(
        self,
        task: Objective,
        *,
        seq_length: int,
        max_predictions: int | None,
        max_examples: int = 1,
        evaluation: bool,
    ) -> RowTransform:
        """Returns the row transform. See `Objective.features` for the arguments.

        TFRecords contain their masks. Raises UserError if their examples are to be packed, or have
        more predictions than `max_predictions`.
        """
        if isinstance(self.dataset, Dataset):
            return task.features(
                seq_length=seq_length,
                max_predictions=max_predictions,
                max_examples=max_examples,
                evaluation=evaluation,
            )
        if max_examples > 1:
            raise UserError.wrong(
                "dataset.stored_masks_packed", max_examples, "null (stored masks)", place="packing"
            )
        summary = self.dataset.summary
        slots, most = max_predictions or summary.slots, summary.most_predictions
        if slots < most:
            raise UserError.wrong(
                "phase.max_predictions", slots, f"{most} or more", place="max_predictions"
            )
        return StaticMaskTransform(
            seq_length=seq_length,
            max_predictions=slots,
            vocab_size=self.tokenizer.vocab_size,
            pad_id=self.tokenizer.special.pad,
        )


def make_evaluator(
    sources: Mapping[str, ExampleSource],
    task: Objective,
    model: ModelDefinition,
    mesh: Mesh,
    *,
    seq_length: int,
    max_predictions: int | None,
    rows: int,
    seed: int,
    limit: int | None = None,
) -> Evaluator:
    """Returns the evaluation of one or several splits.

    Args:
        sources: opened splits by the name of their set.
        task: objective of the run.
        model: model of the objective.
        mesh: mesh of the run.
        seq_length: tokens per row.
        max_predictions: maximum number of masked tokens per row.
        rows: rows per batch, over all devices and hosts.
        seed: seed of the masks.
        limit: number of examples of each split. Default: all.

    Raises:
        UserError: like `ExampleSource.features`.
    """
    share, sets = process_share(mesh), {}
    for name, source in sources.items():
        features = source.features(
            task, seq_length=seq_length, max_predictions=max_predictions, evaluation=True
        )
        open_batches = functools.partial(
            evaluation_batches,
            source.dataset,
            features,
            batch_size=rows,
            seed=seed,
            limit=limit,
            share=share,
        )
        batch = abstract_batch(features, mesh, rows=rows)
        sets[name] = HeldOut(open_batches, batch, source.lacking)
    return Evaluator(task, model, sets, mesh, shares=share.count)


def open_source(
    path: str,
    split: str,
    *,
    objective: ObjectiveSection,
    tokenizer: Tokenizer,
    cache: DatasetCache,
    key: str,
    evaluation: bool = False,
) -> ExampleSource:
    """Opens a split and checks that it fits the run.

    Args:
        path: a dataset directory, or TFRecords: a file, a glob or a directory.
        split: "train" or "validation".
        objective: objective that must fit the examples.
        tokenizer: tokenizer that must have the vocabulary of the examples.
        cache: local copies of datasets in a bucket.
        key: key of the setting that contains the path, for messages.
        evaluation: whether the split is only evaluated.

    Raises:
        UserError: the path does not exist, a file is damaged, or the examples were made for another
            objective or with another vocabulary.
    """
    if is_google_bert(path):
        with at(key):
            dataset = open_google_bert(path, split)
        _check_google_bert(dataset, objective, tokenizer, key=key)
    else:
        with at(key):
            dataset = open_dataset(cache.local(path), split)
            dataset.provenance.require_tokenizer(tokenizer.hash, place=path)
        check_pairing(
            objective,
            dataset.provenance.pairing.kind,
            dataset=dataset.directory,
            key=key,
            evaluation=evaluation,
        )
    return ExampleSource(dataset, tokenizer)


def _check_google_bert(
    dataset: GoogleBertDataset, objective: ObjectiveSection, tokenizer: Tokenizer, *, key: str
) -> None:
    """Raises UserError if examples were made for another objective or vocabulary."""
    if objective.pair != "nsp":
        raise UserError(
            "objective.tfrecords", f"{objective.kind} cannot use TFRecords, only bert", place=key
        )
    highest, special = dataset.summary.highest_id, tokenizer.special
    if highest >= tokenizer.vocab_size:
        raise UserError.wrong(
            "tfrecord.token_id", f"id {highest}", f"0 to {tokenizer.vocab_size - 1}", place=key
        )
    ends = dataset[0].original()[[0, -1]].tolist()
    if ends != [special.cls, special.sep]:
        raise UserError.wrong(
            "tfrecord.special_ids", f"[CLS], [SEP] = {ends}", [special.cls, special.sep], place=key
        )


class OpenedPhase(NamedTuple):
    """A phase with the paths and the fingerprints of its data."""

    phase: Phase
    dataset: str  # name of the data in messages
    training: Mapping[str, str]  # fingerprints of training splits by path
    validation: str | None  # fingerprints of the validation splits, if there are any
    evaluator: Evaluator | None  # None without evaluation
    evaluated: int  # number of examples per evaluation
    masks: Mapping[str, MaskShare]  # masks of words in a sample of each training split, by path
    epochs: Sequence[PhaseEpochs]  # of each training split


class PhaseOpener(NamedTuple):
    """Opens the phases of one run."""

    settings: PretrainSettings
    objective: Objective  # objective of the last phase
    architecture: EncoderArchitecture
    model: ModelDefinition
    optimizer: optax.GradientTransformationExtraArgs
    tokenizer: Tokenizer
    mesh: Mesh
    cache: DatasetCache
    # Returns the objective of a phase for its architecture
    objective_for: Callable[[int, EncoderArchitecture], Objective]

    def open(self, index: int) -> OpenedPhase:
        """Opens a phase. Raises UserError if its data do not fit model, tokenizer or objective."""
        section, key = self.settings.train.phases[index], f"train.phases.{index}"
        open_split = functools.partial(
            open_source,
            objective=self.settings.objective_of(index),
            tokenizer=self.tokenizer,
            cache=self.cache,
        )
        sources = {
            path: open_split(path, TRAIN, key=section.path_key(key, path)) for path in section.paths
        }
        source = next(iter(sources.values()))
        data = PhaseData.of(
            index, section, {path: found.dataset for path, found in sources.items()}
        )
        section.check_positions(self.architecture.max_position_embeddings, key=key)
        changes = section.architecture_changes(self.architecture, key=key)
        held_out, evaluation = {}, self.settings.train.evaluation
        if evaluation is not None:
            for name, path in evaluation.held_out.items():
                place = held_out_key(name)
                held_out[name] = open_split(path, VALIDATION, key=place, evaluation=True)
                with at(place):
                    check_row_length(section.seq_length, held_out[name].dataset.lengths)
        with under(key, PhaseSection):
            if isinstance(section.dataset, str) and not held_out and VALIDATION in source.splits:
                held_out[""] = open_split(section.dataset, VALIDATION, key="dataset")
            phase, loader, evaluator, masks = self._phase(
                section, source, data, held_out, changes=changes, index=index
            )
        sizes = [len(each.dataset) for each in held_out.values()] if evaluator else []
        return OpenedPhase(
            phase,
            section.dataset_name,
            data.fingerprints,
            fingerprints_of(held_out),
            evaluator,
            sum(min(size, self._limit or size) for size in sizes),
            masks,
            data.epochs(loader),
        )

    @property
    def _limit(self) -> int | None:
        """The maximum number of examples per evaluation."""
        evaluation = self.settings.train.evaluation
        return None if evaluation is None else evaluation.examples

    def _phase(
        self,
        section: PhaseSection,
        source: ExampleSource,
        data: PhaseData,
        held_out: Mapping[str, ExampleSource],
        *,
        changes: Mapping[str, float],
        index: int,
    ) -> tuple[Phase, Loader, Evaluator | None, Mapping[str, MaskShare]]:
        settings = self.settings
        objective = self.objective_for(index, self.architecture.with_changes(changes))
        model = define_model(objective.build)
        features = source.features(
            objective,
            seq_length=section.seq_length,
            max_predictions=section.max_predictions,
            max_examples=section.max_examples,
            evaluation=False,
        )
        evaluator, seed = None, settings.train.evaluation_seed(settings.seed)
        if settings.train.evaluation is not None and held_out:
            evaluator = make_evaluator(
                held_out,
                objective,
                model,
                self.mesh,
                seq_length=section.seq_length,
                max_predictions=section.max_predictions,
                rows=settings.train.evaluation_rows(section),
                seed=seed,
                limit=self._limit,
            )
        loader = Loader(
            data.for_loader,
            features,
            batch_size=section.batch_size,
            ramp=section.rows.ramp,
            seed=settings.seed,
            phase=index,
            share=process_share(self.mesh),
            section=settings.loader,
        )
        phase = Phase(
            step=StepSpec(
                task=objective, model=model, optimizer=self.optimizer, ema=settings.train.ema
            ),
            steps=section.steps,
            batch_size=section.batch_size,
            accumulation=section.accumulation,
            loader=loader,
            describe_read=data.describe_read(loader),
            shapes=1 + len(section.batch_ramp),
            flops_per_row=objective.flops_per_row(features.batch([], [])),
            evaluate=evaluator,
            validation=f"{self._limit or 'all'} of {fingerprints_of(held_out)}, seed {seed}",
            architecture=changes,
            causal=settings.objective_of(index).heads.causal,
            pretrained=settings.origin is not None or _starts_from_teacher(objective),
            watch=objective.watch(
                unigram_entropy=data.unigram_entropy, total_steps=settings.train.total_steps
            ),
            batch=abstract_batch(features, self.mesh, rows=section.batch_size),
            compile_evaluation=evaluator and evaluator.compile,
        )
        return phase, loader, evaluator, data.masks(features, seed=settings.seed)


def fingerprints_of(held_out: Mapping[str, ExampleSource]) -> str | None:
    """Returns the fingerprint of a split, or of several as text; None without splits."""
    found = (f"{name} {each.dataset.fingerprint}".strip() for name, each in held_out.items())
    return ", ".join(found) or None


def _starts_from_teacher(objective: Objective) -> bool:
    return any(model.initial is not None for model in objective.frozen_models().values())
