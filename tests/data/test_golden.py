"""Hashes of pairs and masks. If they change, another version of the package cannot resume a run.

The hashes are from the first version of the package. Change them only together with
``FORMAT_VERSION`` and a note in the changelog.
"""

import hashlib

import numpy as np
import pytest

from bert_jax.data.dataset.provenance import PairingSection
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments
from tests.corpus import from_lists
from tests.data.numbered import pairs_of
from tests.data.test_masking import SPECIAL, masker


def documents() -> TokenisedDocuments:
    rng = stream(11, "golden documents")

    def sentence() -> list[int]:
        return (5 + (rng.random(1 + int(rng.random() * 40)) * 900).astype(int)).tolist()

    held = [[sentence() for _ in range(1 + int(rng.random() * 20))] for _ in range(12)]
    return from_lists(range(100, 112), held, np.dtype(np.uint16))


def test_next_sentence_pairs_equal_the_first_versions() -> None:
    section = PairingSection(max_seq_length=64, dupe_factor=5)
    pairs = pairs_of(documents(), section, seed=12345)
    spelled = "".join(repr(tuple(map(int, pair[:5]))) for pair in pairs)
    assert len(pairs) == 306
    assert (
        hashlib.sha256(spelled.encode()).hexdigest()
        == "41c1c803bb95ff542883d7feec3c5ce571b840268938bbf1fe924eff6551fac3"
    )


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("token", "b94c43be870a1b0dc2ecf38ecaa3bd5d0ef414db4e82400d727b01daea69def0"),
        ("whole_word", "da31bc5e2b6405641ad2ff71843a10c73c7e2fe00cb13227bd3b46f63c685bd9"),
    ],
)
def test_masks_equal_the_first_versions(unit: str, expected: str) -> None:
    found = hashlib.sha256()
    mask = masker(MaskingSection.model_validate({"unit": unit}), 60)
    for index in range(200):
        rng = stream(5, "golden example", index)
        length = 6 + int(rng.random() * 500)
        ids = 5 + (rng.random(length) * 995).astype(np.uint16)
        ids[[0, length // 2, length - 1]] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
        for array in mask(ids, stream(5, "mask", 0, 0, index)):
            found.update(np.asarray(array, np.int32).tobytes())
    assert found.hexdigest() == expected
