"""`bert-jax examples`: text + tokenizer → dataset, with reports and exports."""

import dataclasses
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from etils import epath
from rich.console import Console

from bert_jax.config import AnyConfig, RunConfig, as_config
from bert_jax.data.dataset.provenance import PROVENANCE_NAME, Provenance, read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import UserError, differing
from bert_jax.files.remote import is_remote, within
from bert_jax.narration import narrator_of
from bert_jax.objectives.registry import masking_of
from bert_jax.pipelines.examples import ExamplesSection, dataset_directory, make_examples
from bert_jax.pipelines.shards.google_bert_tfrecords import write_tfrecords
from bert_jax.report.dataset.page import write_examples_report
from bert_jax.report.dataset.sample import print_examples
from bert_jax.section import need, under
from bert_jax.text import load_tokenizer

_COUNT: Final = re.compile(r" (?P<done>\d+) of (?P<all>\d+)$")  # finished jobs in a progress line
_PROGRESS_SECONDS: Final = 30.0  # minimum time between progress lines of a stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtraOutputs:
    """Additional outputs of a dataset."""

    report: bool = False  # write ``<output>.report.html``
    inspect: int | None = None  # number of examples to print
    tfrecords: str | None = None  # directory for google-research/bert's format

    @property
    def any(self) -> bool:
        """Whether an additional output is requested."""
        return self.report or bool(self.inspect) or self.tfrecords is not None


def examples(
    config: AnyConfig,
    *,
    extra: ExtraOutputs | None = None,
    console: Console | None = None,
    **overrides: Any,
) -> Provenance:
    """Makes the dataset of the section `examples`, and the additional outputs.

    Args:
        config: a configuration, a dict of its settings or its file, with the section `examples`.
        extra: additional outputs. If the dataset exists, they do not read the text.
        console: console for the progress.
        overrides: settings that replace the configuration's, see `bert_jax.pretrain`.

    Returns:
        The dataset's settings and statistics.

    Raises:
        UserError: the section is missing, or the text cannot be read or split into pairs.
    """
    config = as_config(config, overrides)
    section = need(config.examples, "examples", "examples")
    console, extra = console or Console(), extra or ExtraOutputs()
    narrator, stage, printed_at = narrator_of(console), "reading the input", -math.inf

    def say(line: str) -> None:
        nonlocal stage, printed_at
        stage = line.partition(":")[0]
        count = _COUNT.search(stage)
        is_intermediate = count is not None and count["done"] not in ("1", count["all"])
        if not is_intermediate or time.monotonic() - printed_at >= _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            narrator.say(line)

    with narrator.stage(lambda: stage, lasting=True):
        provenance = _make(section, extra, say)
        if extra.any:
            _write_extra(config, section, extra, provenance, say=say, console=console)
    return provenance


def _make(section: ExamplesSection, extra: ExtraOutputs, say: Callable[[str], None]) -> Provenance:
    output = dataset_directory(section)
    if not epath.Path(section.tokenizer).exists():
        raise UserError(
            "examples.tokenizer_missing",
            f"no directory {section.tokenizer}{within(section.tokenizer)}. Run `bert-jax vocab`.",
            place="examples.tokenizer",
        )
    with under("examples", ExamplesSection):
        if extra.any and is_remote(output):
            raise UserError(
                "examples.in_bucket",
                f"found {output}. Copy the dataset to this machine to read it.",
                place="output",
            )
        if not (extra.any and (output / PROVENANCE_NAME).exists()):
            return make_examples(section, progress=say)
        provenance = read_provenance(output)
        names = ("seed", "num_shards", "mixture", "validation_fraction")
        held = provenance.pairing.model_dump() | {name: getattr(provenance, name) for name in names}
        for name, value in held.items():
            if (asked := getattr(section, name)) != value:
                raise UserError(
                    "examples.setting_changed",
                    f"found {asked}, but {section.output} was made with {value}",
                    place=name,
                )
        return provenance


def _write_extra(
    config: RunConfig,
    section: ExamplesSection,
    extra: ExtraOutputs,
    provenance: Provenance,
    *,
    say: Callable[[str], None],
    console: Console,
) -> None:
    output = dataset_directory(section)
    tokenizer = load_tokenizer(section.tokenizer)
    if tokenizer.hash != provenance.tokenizer_hash:
        found, wanted = differing(tokenizer.hash, provenance.tokenizer_hash)
        raise UserError(
            "examples.tokenizer_changed",
            f"found {section.tokenizer} ({found}), but {output} was made with {wanted}",
            place="examples.tokenizer",
        )
    masking, seed = masking_of(config.objective) or MaskingSection(), config.seed
    names = sorted(provenance.splits, key=lambda name: name != "train")
    splits = [open_dataset(output, name) for name in names]
    if extra.report:
        path = write_examples_report(splits, tokenizer=tokenizer, masking=masking, seed=seed)
        say(f"{path}: written")
    if extra.tfrecords is not None:
        rows = MaskingTransform.from_tokenizer(
            tokenizer, seq_length=provenance.pairing.max_seq_length, masking=masking
        )
        target = Path(extra.tfrecords).expanduser().absolute()
        written = write_tfrecords(splits, target, rows=rows, seed=seed)
        counts = ", ".join(f"{count:,} of {name}" for name, count in written.items())
        length, predictions = rows.seq_length, rows.max_predictions
        say(f"{target}: {counts}; rows of {length} tokens, {predictions} predictions")
    if extra.inspect:
        print_examples(
            splits[0],
            extra.inspect,
            tokenizer=tokenizer,
            masking=masking,
            seed=seed,
            console=console,
        )
