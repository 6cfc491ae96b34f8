"""`bert-jax examples`: text + tokenizer → dataset, and a look at it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.data.dataset.provenance import PROVENANCE_NAME, Provenance, read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import UserError
from bert_jax.files.remote import is_remote
from bert_jax.pipelines.examples import ExamplesSection, dataset_directory, make_examples
from bert_jax.pipelines.shards.google_bert_tfrecords import write_tfrecords
from bert_jax.report.dataset.collect import print_examples, write_examples_report
from bert_jax.section import need, under
from bert_jax.text import load_tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """What to do with a dataset once it is there.

    Attributes:
        report: write ``<output>.report.html``.
        inspect: print so many examples.
        tfrecords: write the dataset to this directory in the release's form.
        copies: of each training example there, with masks of its own.
    """

    report: bool = False
    inspect: int = 0
    tfrecords: str | None = None
    copies: int = 1

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to do."""
        return self.report or self.inspect > 0 or self.tfrecords is not None


def examples(
    config: RunConfig, *, look: Look | None = None, console: Console | None = None
) -> Provenance:
    """Makes the dataset that the section `examples` describes, and looks at it.

    Args:
        config: needs `examples`.
        look: what to do with the dataset; of one that is finished the text need not be there.
        console: where progress is shown.

    Returns:
        What the dataset was made of, and its figures.

    Raises:
        UserError: the section is missing, or the text cannot be read or paired.
    """
    section = need(config.examples, "examples", "examples")
    console = console or Console()
    look = look or Look()

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    output = dataset_directory(section)
    with under("examples", ExamplesSection):
        if look.is_wanted and is_remote(output):
            raise UserError(
                f"output: {output} is in a bucket, whose ArrayRecord files cannot be read; allowed "
                "to look at: a copy on this machine"
            )
        if look.is_wanted and (output / PROVENANCE_NAME).exists():
            provenance = read_provenance(output)
            _check_settings(section, provenance)
        else:
            provenance = make_examples(section, progress=say)
    if look.is_wanted:
        _look(config, section, look, output=output, console=console)
    return provenance


def _look(
    config: RunConfig, section: ExamplesSection, look: Look, *, output: epath.Path, console: Console
) -> None:
    tokenizer = load_tokenizer(section.tokenizer)
    provenance = read_provenance(output)
    if tokenizer.hash != provenance.tokenizer_hash:
        raise UserError(
            f"examples.tokenizer: {section.tokenizer} ({tokenizer.hash[:12]}) is not the one that "
            f"{output} was made with ({provenance.tokenizer_hash[:12]})"
        )
    masking = config.objective.masking
    names = sorted(provenance.splits, key=lambda name: name != "train")
    splits = [open_dataset(output, name) for name in names]
    if look.report:
        path = write_examples_report(splits, tokenizer=tokenizer, masking=masking, seed=config.seed)
        console.print(f"{path}: written", markup=False, soft_wrap=True)
    if look.tfrecords is not None:
        rows = MaskingTransform.from_tokenizer(
            tokenizer, seq_length=provenance.pairing.max_seq_length, masking=masking
        )
        target = Path(look.tfrecords).expanduser().absolute()
        written = write_tfrecords(splits, target, rows=rows, seed=config.seed, copies=look.copies)
        told = ", ".join(f"{count:,} of {name}" for name, count in written.items())
        console.print(
            f"{target}: {told}; rows of {rows.seq_length} tokens, {rows.max_predictions} "
            "predictions",
            markup=False,
            soft_wrap=True,
        )
    if look.inspect:
        print_examples(
            splits[0],
            look.inspect,
            tokenizer=tokenizer,
            masking=masking,
            seed=config.seed,
            console=console,
        )


def _check_settings(section: ExamplesSection, made: Provenance) -> None:
    """Makes sure that a finished dataset is the one that the configuration describes.

    Only by the settings that need no text: `make_examples` compares the rest too.

    Raises:
        UserError: naming the setting that differs.
    """
    held = {**made.pairing.model_dump(), "seed": made.seed, "num_shards": made.num_shards}
    held |= {"validation_fraction": made.validation_fraction, "mixture": made.mixture}
    for name, value in held.items():
        if (asked := getattr(section, name)) != value:
            raise UserError(
                f"{name}: found {asked}, but {section.output} is there already, made with {value}; "
                "allowed: the same, or another output"
            )
