"""What a user must see whatever the verb prints."""

import jax
from rich.console import Console


def warn_aloud(line: str) -> None:
    """Prints a warning in red on standard error; of the processes of one job the first does."""
    if jax.process_index() == 0:
        Console(stderr=True).print(
            f"bert-jax: WARNING: {line}",
            style="bold red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
