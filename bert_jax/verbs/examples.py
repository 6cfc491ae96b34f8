"""`bert-jax examples`: text + tokenizer → dataset."""

from __future__ import annotations

from rich.console import Console

from bert_jax.config import RunConfig, need, under
from bert_jax.data.provenance import Provenance
from pipelines.examples import ExamplesSection, make_examples


def examples(config: RunConfig, *, console: Console | None = None) -> Provenance:
    """Makes the dataset that the section `examples` describes.

    Args:
        config: needs `examples`.
        console: where progress is shown.

    Returns:
        What the dataset was made of, and its figures.

    Raises:
        UserError: the section is missing, or the text cannot be read or paired.
    """
    section = need(config.examples, "examples", "examples")
    console = console or Console()
    with under("examples", ExamplesSection):
        return make_examples(
            section, progress=lambda line: console.print(line, markup=False, soft_wrap=True)
        )
