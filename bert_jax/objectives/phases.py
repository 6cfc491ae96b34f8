"""From the settings of a phase to the phase with its data opened."""

import functools
from typing import NamedTuple

from jax.sharding import Mesh

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.data.loader.loader import Loader, evaluation_batches
from bert_jax.model.config import Architecture
from bert_jax.objectives.example_source import TRAIN, VALIDATION, ExampleSource, open_source
from bert_jax.objectives.section import PretrainSettings
from bert_jax.parallel.mesh import process_share
from bert_jax.section import under
from bert_jax.task import Objective
from bert_jax.text import Tokenizer
from bert_jax.train.evaluations import make_evaluation
from bert_jax.train.sections import PhaseSection
from bert_jax.train.spec import Evaluate, Phase
from bert_jax.train.state import ModelDefinition


class OpenedPhase(NamedTuple):
    """A phase, and the identity of its data."""

    phase: Phase
    dataset: str  # a path
    training: str  # fingerprint of the split
    validation: str | None  # None: there is no such split


class PhaseOpener(NamedTuple):
    """Opens the phases of one run."""

    settings: PretrainSettings
    objective: Objective
    architecture: Architecture
    model: ModelDefinition
    tokenizer: Tokenizer
    mesh: Mesh
    cache: DatasetCache

    def open(self, index: int) -> OpenedPhase:
        """Opens a phase's data and checks that model, tokenizer and objective fit it.

        Raises UserError: they do not; the message names the key.
        """
        section, key = self.settings.train.phases[index], f"train.phases.{index}"
        source_of = functools.partial(
            open_source,
            section.dataset,
            objective=self.settings.objective,
            tokenizer=self.tokenizer,
            cache=self.cache,
        )
        source = source_of(TRAIN, key=f"{key}.dataset")
        section.check_positions(self.architecture.max_position_embeddings, key=key)
        held_out = None
        with under(key, PhaseSection):
            if VALIDATION in source.splits:
                held_out = source_of(VALIDATION, key="dataset")
            phase = self._phase(section, source, held_out, index=index)
        validation = None if held_out is None else held_out.dataset.fingerprint
        return OpenedPhase(phase, section.dataset, source.dataset.fingerprint, validation)

    def _phase(
        self,
        section: PhaseSection,
        source: ExampleSource,
        held_out: ExampleSource | None,
        *,
        index: int,
    ) -> Phase:
        settings = self.settings
        features = source.features(
            self.objective,
            seq_length=section.seq_length,
            max_predictions=section.max_predictions,
            evaluation=False,
        )
        if section.packing is not None:
            features = features.packed(section.packing.max_examples)
        evaluation = settings.train.evaluation
        limit = None if evaluation is None else evaluation.examples
        found = "nothing" if held_out is None else held_out.dataset.fingerprint
        return Phase(
            steps=section.steps,
            batch_size=section.batch_size,
            accumulation=section.accumulation,
            loader=Loader(
                source.dataset,
                features,
                batch_size=section.batch_size,
                seed=settings.seed,
                phase=index,
                share=process_share(self.mesh),
                section=settings.loader,
            ),
            shapes=1,
            flops_per_row=self.objective.flops_per_row(
                seq_length=section.seq_length, predictions=features.max_predictions
            ),
            evaluate=None if evaluation is None else self._evaluate(section, held_out, limit),
            validation=f"{limit or 'all'} examples of {found}",
            watch=self.objective.watch(
                unigram_entropy=source.unigram_entropy, total_steps=settings.train.total_steps
            ),
        )

    def _evaluate(
        self, section: PhaseSection, held_out: ExampleSource | None, limit: int | None
    ) -> Evaluate | None:
        if held_out is None:
            return None
        share = process_share(self.mesh)
        open_batches = functools.partial(
            evaluation_batches,
            held_out.dataset,
            held_out.features(
                self.objective,
                seq_length=section.seq_length,
                max_predictions=section.max_predictions,
                evaluation=True,
            ),
            batch_size=self.settings.train.evaluation_rows(section),
            seed=self.settings.seed,
            limit=limit,
            share=share,
        )
        return make_evaluation(
            self.objective, self.model, open_batches, self.mesh, shares=share.count
        )
