"""How many shapes the batches of a fine-tuning run have: padding against compilation."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from bert_jax.model.shape_cost import ShapeCost

# Lengths of a batch's two halves, the shorter first.
Lengths: TypeAlias = tuple[int, int]

# A step over halves of two lengths runs the model twice: so much longer it compiles.
TWO_PARTS: Final = 1.7


def choose_shapes(
    batches: Mapping[Lengths, int], *, sizes: Lengths, cost: ShapeCost
) -> dict[Lengths, Lengths]:
    """Returns what to pad each kind of batch to, so that padding and compiling cost least.

    ``choose_shapes({(16, 32): 90, (24, 32): 1}, sizes=(8, 8), cost=…)`` → ``{(16, 32): (24, 32),
    (24, 32): (24, 32)}`` where compiling costs more than padding 90 half batches by 8.

    From the shapes as they are, the change that saves most is made until none saves: two shapes
    become one, as long as the longer of each half; or both halves of one become equally long.
    Which rows are in a batch does not change.

    Args:
        batches: of an epoch, how many of each kind.
        sizes: rows of the two halves.
        cost: of the run.
    """
    chosen = {lengths: lengths for lengths in batches}
    seconds = _seconds(chosen, batches, sizes, cost)
    while True:
        changed = min(
            _changes(chosen),
            key=lambda each: _seconds(each, batches, sizes, cost),
            default=chosen,
        )
        found = _seconds(changed, batches, sizes, cost)
        if found >= seconds:
            return chosen
        chosen, seconds = changed, found


def _changes(chosen: Mapping[Lengths, Lengths]) -> Iterator[dict[Lengths, Lengths]]:
    targets = sorted(set(chosen.values()))
    for one, other in itertools.combinations_with_replacement(targets, 2):
        joined = max(one[0], other[0]), max(one[1], other[1])
        for target in {joined, (joined[1], joined[1])}:
            yield {k: target if now in (one, other) else now for k, now in chosen.items()}


def _seconds(
    chosen: Mapping[Lengths, Lengths],
    batches: Mapping[Lengths, int],
    sizes: Lengths,
    cost: ShapeCost,
) -> float:
    """Returns what compiling and computing with these shapes take."""
    programs = sum(1.0 if short == long else TWO_PARTS for short, long in set(chosen.values()))
    positions = sum(
        count * (chosen[kind][0] * sizes[0] + chosen[kind][1] * sizes[1])
        for kind, count in batches.items()
    )
    return programs * cost.program + positions * cost.passes * cost.position
