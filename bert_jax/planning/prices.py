"""Prices of chip-hours, from a dated file. Users may give their own file."""

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

    date: str = pydantic.Field(pattern=r"^\d{4}-\d\d-\d\d$")  # date when the prices were read
    source: str  # where the prices are from
    chip_hour: dict[str, ChipHour]  # prices by generation; a missing generation has no price


def load_prices(path: str | None = None) -> Prices:
    """Reads a price list. Default: the package's own.

    Raises UserError if the file is missing or not YAML, has an unknown key, or a price is invalid.
    """
    source = path or str(_DEFAULT)
    return validate(Prices, read_yaml(source), source=source)
