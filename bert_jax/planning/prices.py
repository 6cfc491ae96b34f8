"""The price of a chip-hour: a dated file that users may replace with their own."""

from pathlib import Path
from typing import Final

import pydantic

from bert_jax.files.yaml_file import read_yaml
from bert_jax.section import Section
from bert_jax.validation import validate

_DEFAULT: Final = Path(__file__).with_name("prices.yaml")


class ChipHour(Section):
    """US dollars for one chip and one hour."""

    on_demand: float = pydantic.Field(ge=0)
    spot: float | None = pydantic.Field(default=None, ge=0)


class Prices(Section):
    """A price list."""

    date: str = pydantic.Field(pattern=r"^\d{4}-\d\d-\d\d$")  # on which it was read
    source: str  # where
    chip_hour: dict[str, ChipHour]  # by generation; one that is not in it has no price


def load_prices(path: str | None = None) -> Prices:
    """Reads a price list; default: the package's own.

    Raises UserError: no such file, not YAML, an unknown key, a price that is no number.
    """
    source = path or str(_DEFAULT)
    return validate(Prices, read_yaml(source), source=source)
