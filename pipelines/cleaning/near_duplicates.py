"""Documents that nearly equal an earlier one: MinHash by ``rensa``, banded."""

import pathlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bert_jax.pipelines.cleaning.spill import repetitions, save_hashes
from bert_jax.pipelines.cleaning.words import combine, ngram_hashes, text_hash, word_hashes
from bert_jax.pipelines.section import NearDuplicatesSection
from bert_jax.pipelines.tokenised.documents import save_array, starts_of

# Two documents are compared if all hashes of one band are equal: FineWeb's numbers, which find most
# pairs with a similarity of 0.75 and more.
BANDS: Final = 14
ROWS: Final = 8  # hashes per band

_SIGNATURES: Final = "signatures.npy"
_SEED: Final = 1
_HASHES_AT_A_TIME: Final = 1 << 16


class Signatures:
    """The signatures of documents, gathered one by one."""

    def __init__(self, section: NearDuplicatesSection) -> None:
        self._section = section
        self._rows: list[np.ndarray] = []
        self._held: list[np.ndarray] = []
        self._held_hashes = 0

    def add(self, text: str) -> None:
        """Adds a document; one with fewer words than an n-gram is compared as a whole."""
        hashes = word_hashes(text)
        grams = ngram_hashes(hashes, min(self._section.ngram, max(1, len(hashes))))
        # A document without words gets a hash that no other document is likely to have.
        self._held.append(grams if len(grams) else np.array([text_hash(text)], np.uint64))
        self._held_hashes += len(self._held[-1])
        if self._held_hashes >= _HASHES_AT_A_TIME:
            self._flush()

    def save(self, directory: pathlib.Path) -> None:
        """Writes the signatures and the hashes of each band."""
        self._flush()
        signatures = np.concatenate([np.empty((0, BANDS * ROWS), np.uint32), *self._rows])
        save_array(directory / _SIGNATURES, signatures)
        (directory / _band(0)).parent.mkdir(exist_ok=True)
        for band in range(BANDS):
            columns = signatures[:, band * ROWS : (band + 1) * ROWS].astype(np.uint64)
            save_hashes(directory, _band(band), combine(list(columns.T)))

    def _flush(self) -> None:
        if not self._held:
            return
        matrix = _minhash().digest_matrix_from_flat_token_hashes(
            np.concatenate(self._held),
            np.cumsum([0, *map(len, self._held)], dtype=np.uint64),
            num_perm=BANDS * ROWS,
            seed=_SEED,
        )
        self._rows.append(np.array(matrix.to_rows(), np.uint32))
        self._held, self._held_hashes = [], 0


def find_near_duplicates(
    spills: Sequence[pathlib.Path], section: NearDuplicatesSection, *, dropped: np.ndarray
) -> np.ndarray:
    """Returns ``[d]`` bool, for the documents of all spills: whether each nearly equals an earlier.

    Of all documents with the same hashes in a band, each is compared with the first. Documents in
    ``dropped``, ``[d]`` bool, are left out.
    """
    near = np.zeros(len(dropped), bool)
    signatures = [np.load(spill / _SIGNATURES, mmap_mode="r") for spill in spills]
    before = starts_of(list(map(len, signatures)))

    def signature(document: int) -> np.ndarray:
        spill = int(np.searchsorted(before, document, side="right")) - 1
        return signatures[spill][document - before[spill]]

    for band in range(BANDS):
        for again, firsts in repetitions(spills, _band(band), dropped=dropped):
            for document, first in zip(again.tolist(), firsts.tolist(), strict=True):
                if not near[document]:
                    equal = np.mean(signature(document) == signature(first))
                    near[document] = equal >= section.threshold
    return near


def algorithm_version() -> int:
    """Returns the version of the library's signatures; signatures of two versions differ."""
    return _minhash().ALGORITHM_VERSION


def _minhash() -> Any:
    import rensa  # of the extra `data`; every configuration imports this module

    return rensa.RMinHash  # pyright: ignore[reportAttributeAccessIssue]


def _band(band: int) -> str:
    return f"bands/{band:03d}"
