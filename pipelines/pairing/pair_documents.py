"""Examples from documents: two spans with a pair task, or full sentences without one.

Each document has a random stream of its own, so that its examples depend on other documents only
through the random next. There is no masking here: the loader masks.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from bert_jax.data.dataset.recipe import PairingKind, PairingSection
from bert_jax.pipelines.pairing.full_sentences import doc_sentences, full_sentences
from bert_jax.pipelines.pairing.language_sampling import draw_passes
from bert_jax.pipelines.pairing.sentence_pairs import next_sentence_pairs, sentence_order_pairs
from bert_jax.pipelines.pairing.spans import DocumentPass, Pair, SentenceOffsets, Single
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments, join_key

Pairing: TypeAlias = Callable[
    [SentenceOffsets, DocumentPass, PairingSection], Iterator[Pair] | Iterator[Single]
]

PAIRINGS: Final[dict[PairingKind, Pairing]] = {
    "nsp": next_sentence_pairs,
    "sop": sentence_order_pairs,
    "full_sentences": full_sentences,
    "doc_sentences": doc_sentences,
}
"""How each kind makes the examples of one pass. A new kind is a function, a line here, and its name
in ``bert_jax/data/dataset/recipe.py``, which datasets record."""


def pair_documents(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int, boost: float = 1.0
) -> Iterator[Pair | Single]:
    """Yields the examples of every document, ``dupe_factor`` times over.

    The seed decides every random choice, with the documents' keys and the settings. ``boost`` is a
    factor of ``dupe_factor``; the fraction of the product is the probability of one more pass over
    a document. A document without a pass may still be a random next.

    Raises:
        ValueError: fewer documents than ``section.min_documents``.
    """
    if len(documents) < section.min_documents:
        raise ValueError(
            f"{len(documents)} document(s): kind {section.kind} needs at least "
            f"{section.min_documents}"
        )
    offsets = SentenceOffsets(
        documents.sentence_starts.tolist(), documents.document_starts.tolist()
    )
    passes = draw_passes(documents.keys, mean=section.dupe_factor * boost, seed=seed)
    keys = [join_key(halves) for halves in documents.keys]
    for number, chosen in enumerate(passes):
        one_pass = DocumentPass(number, len(passes), chosen, keys, seed)
        yield from PAIRINGS[section.kind](offsets, one_pass, section)
