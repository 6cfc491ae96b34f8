"""`BucketedInference` runs rows of different lengths, each once."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.rows.collate import collate_tokens
from bert_jax.inference.bucketed import CPU_POSITIONS, BucketedInference
from bert_jax.inference.lengths import buckets_up_to
from bert_jax.model.shape_cost import ShapeCost
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection

MAX_LENGTH = 100


class Recorder:
    """A `MakeBatch` that records its arguments. All tokens are 1."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.asked: list[tuple[list[int], int, int]] = []

    def __call__(
        self, rows: np.ndarray, *, batch_size: int, length: int
    ) -> Mapping[str, np.ndarray]:
        self.asked.append((rows.tolist(), batch_size, length))
        sequences = [np.ones(self.lengths[row], np.int32) for row in rows]
        return collate_tokens(sequences, batch_size=batch_size, length=length, pad_id=0)


def forward(params: Any, batch: Any) -> dict[str, jax.Array]:
    """Returns the tokens, and their sum times the parameter."""
    return {"sum": params * batch["input_ids"].sum(axis=1), "tokens": batch["input_ids"]}


@given(lengths=st.lists(st.integers(1, MAX_LENGTH), max_size=60), batch_size=st.integers(1, 20))
@settings(deadline=None, max_examples=15)
def test_every_row_runs_once_at_one_of_few_lengths(lengths: list[int], batch_size: int) -> None:
    mesh = make_mesh(MeshSection())
    inference = BucketedInference(
        forward, mesh, batch_size=batch_size, max_length=MAX_LENGTH, cost=ShapeCost(0)
    )
    assert batch_size <= inference.batch_size < batch_size + 8
    assert inference.batch_size % 8 == 0
    seen: Counter[int] = Counter()
    recorder = Recorder(lengths)
    for batch in inference(jax.numpy.asarray(3), lengths, recorder):
        rows = batch.rows.tolist()
        seen.update(rows)
        assert max(lengths[row] for row in rows) <= batch.length
        assert batch.length in buckets_up_to(MAX_LENGTH)
        assert batch.outputs["tokens"].shape == (len(rows), batch.length)
        assert batch.outputs["sum"].tolist() == [3 * lengths[row] for row in rows]
    assert seen == Counter(range(len(lengths)))
    partial = [len(rows) < size for rows, size, _ in recorder.asked]
    assert not any(partial[1:])  # only the batch with the shortest rows has padding rows
    for _, size, length in recorder.asked:
        assert size % 8 == 0
        assert size == min(inference.batch_size, -(-(CPU_POSITIONS // length) // 8) * 8)


def test_outputs_do_not_depend_on_the_number_of_programs() -> None:
    lengths = np.random.default_rng(1).integers(1, MAX_LENGTH, 90).tolist()
    shapes, sums = [], []
    for cost in (ShapeCost(0), ShapeCost(1e6)):
        recorder = Recorder(lengths)
        inference = BucketedInference(
            forward, make_mesh(MeshSection()), batch_size=16, max_length=MAX_LENGTH, cost=cost
        )
        found = {
            row: int(total)
            for batch in inference(jax.numpy.asarray(2), lengths, recorder)
            for row, total in zip(batch.rows.tolist(), batch.outputs["sum"], strict=True)
        }
        shapes.append({asked[1:] for asked in recorder.asked})
        sums.append([found[row] for row in range(len(lengths))])
    assert len(shapes[0]) > 3
    assert shapes[1] == {(16, 100)}
    assert sums[0] == sums[1] == [2 * length for length in lengths]


def test_a_longer_stream_gets_more_lengths() -> None:
    lengths = np.random.default_rng(1).integers(1, MAX_LENGTH, 90).tolist()
    inference = BucketedInference(
        forward,
        make_mesh(MeshSection()),
        batch_size=16,
        max_length=MAX_LENGTH,
        cost=ShapeCost(5000),
    )
    found = [
        {batch.length for batch in inference(jax.numpy.asarray(1), lengths, Recorder(lengths))}
        for _ in range(8)
    ]
    assert found[0] == {100}
    assert len(found[-1]) > 1
