"""The training data of a phase: one dataset, or several that are mixed."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self, TypeAlias

from bert_jax.data.dataset.reader import Dataset
from bert_jax.data.google_bert.reader import GoogleBertDataset
from bert_jax.data.loader.data_position import DataPosition
from bert_jax.data.loader.loader import Loader, MixedDatasets
from bert_jax.data.loader.mask_share import MaskShare, measure_masks
from bert_jax.data.loader.mixture import ONE_SOURCE, Mixture
from bert_jax.errors import UserError
from bert_jax.task import RowTransform
from bert_jax.workflows.epochs import PhaseEpochs, format_epochs
from bert_jax.workflows.pretraining_settings import PhaseSection

AnyDataset: TypeAlias = Dataset | GoogleBertDataset


class PhaseData(NamedTuple):
    """The opened training splits of a phase."""

    phase: int
    section: PhaseSection
    datasets: Mapping[str, AnyDataset]  # by directory, in the order of the mixture
    mixture: Mixture

    @classmethod
    def of(cls, phase: int, section: PhaseSection, opened: Mapping[str, AnyDataset]) -> Self:
        """Mixes the opened splits as the phase's settings say.

        Raises UserError if several datasets have equal examples, or one of them is TFRecords.
        """
        if not section.is_mixed:
            return cls(phase, section, opened, ONE_SOURCE)
        # The content decides the order, so that moved or reordered directories change no row.
        datasets = dict(sorted(opened.items(), key=lambda item: item[1].fingerprint))
        first: dict[str, str] = {}
        for path, found in datasets.items():
            key = section.path_key(f"train.phases.{phase}", path)
            if isinstance(found, GoogleBertDataset):
                raise UserError.wrong(
                    "mixing.tfrecords", "TFRecords", "datasets of `bert-jax examples`", place=key
                )
            if (other := first.setdefault(found.fingerprint, path)) != path:
                same = f"the same examples as in {other}"
                raise UserError.wrong("mixing.same_examples", same, "other examples", place=key)
        tokens = {path: int(found.lengths.sum()) for path, found in datasets.items()}
        return cls(phase, section, datasets, section.mixture(tokens))

    @property
    def for_loader(self) -> AnyDataset | MixedDatasets:
        """The argument of `Loader`."""
        datasets = list(self.datasets.values())
        return MixedDatasets(datasets, self.mixture) if self.section.is_mixed else datasets[0]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the datasets by directory."""
        return {path: found.fingerprint for path, found in self.datasets.items()}

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the text before masking, in nats per token.

        For several datasets, the mean over their rows. The entropy of the mixture is higher, by at
        most the logarithm of the number of datasets.
        """
        counts = self.mixture.counts(self.section.total_rows)
        entropies = (
            (each.provenance.corpus if isinstance(each, Dataset) else each.summary).unigram_entropy
            for each in self.datasets.values()
        )
        sums = [count * each for count, each in zip(counts, entropies, strict=True)]
        return sum(sums) / sum(counts)

    def masks(self, rows: RowTransform, *, seed: int) -> dict[str, MaskShare]:
        """Measures the masks of words in a sample of each dataset, by directory."""
        found = {
            path: measure_masks(dataset, rows, seed=seed) for path, dataset in self.datasets.items()
        }
        return {path: share for path, share in found.items() if share is not None}

    def epochs(self, loader: Loader) -> list[PhaseEpochs]:
        """Counts the planned epochs of each dataset."""
        read = self.mixture.counts(self.section.total_rows)
        return [
            PhaseEpochs.of(
                self.phase,
                self.section,
                path,
                read=own,
                rows=rows,
                made=found.provenance if isinstance(found, Dataset) else None,
            )
            for (path, found), own, rows in zip(
                self.datasets.items(), read, loader.rows_by_dataset, strict=True
            )
        ]

    def describe_read(self, loader: Loader) -> Callable[[DataPosition], str] | None:
        """Returns a function that says what a position of several datasets has read."""
        if not self.section.is_mixed:
            return None

        def describe(position: DataPosition) -> str:
            read = self.mixture.counts(position.example_index)
            parts = [
                f"{format_epochs(own / rows)} epochs of {path} ({own:,} rows)"
                for path, own, rows in zip(self.datasets, read, loader.rows_by_dataset, strict=True)
            ]
            return f"phase {self.phase} has read {'; '.join(parts)}"

        return describe
