"""Compares `fill_mask` of an imported model with the original PyTorch model."""

import json

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM

from bert_jax.verbs.fill_mask import fill_mask
from bert_jax.verbs.import_checkpoint import import_checkpoint
from tests.feature_extraction.runs import IDS, PIECES
from tests.interop.hf_checkpoints import hf_config, hf_model
from tests.project import refuses

POSITIONS = 100


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, BertForMaskedLM]:
    """A run with an MLM head and 100 positions, which is not a multiple of 8.

    Five embedding rows have no piece, but the highest logits.
    """
    directory = tmp_path_factory.mktemp("mlm")
    config = hf_config(
        vocab_size=len(PIECES) + 5, num_hidden_layers=2, max_position_embeddings=POSITIONS
    )
    model = hf_model(BertForMaskedLM, config)
    with torch.no_grad():
        model.cls.predictions.bias[len(PIECES) :] += 20
    model.save_pretrained(directory / "hf")
    (directory / "hf" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (directory / "hf" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    return str(import_checkpoint(str(directory / "hf"), str(directory / "run"))), model


def reference(model: BertForMaskedLM, text: str) -> np.ndarray:
    """Returns probabilities, [masks, embedding rows]. Special pieces and unused rows have 0."""
    ids = torch.tensor([[IDS[piece] for piece in ["[CLS]", *text.split(), "[SEP]"]]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].numpy()[np.asarray(ids[0]) == IDS["[MASK]"]]
    logits[:, :5] = logits[:, len(PIECES) :] = -np.inf
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def test_candidates_equal_hugging_faces_at_every_position(
    imported: tuple[str, BertForMaskedLM],
) -> None:
    run, model = imported
    texts = [
        " ".join(["w1"] * (POSITIONS - 3) + ["[MASK]"]),  # uses every position
        "w3 [MASK] w5 [MASK] w7",
        "[MASK] w9",
    ]
    filled = fill_mask(run, texts, top_k=4)
    assert [text for text, _ in filled] == texts
    for text, masks in filled:
        expected = reference(model, text)
        assert len(masks) == len(expected)
        for candidates, chances in zip(masks, expected, strict=True):
            found = [IDS[piece] for piece, _ in candidates]
            best = np.sort(chances)[::-1][:4]
            np.testing.assert_allclose([chance for _, chance in candidates], best, rtol=1e-3)
            np.testing.assert_allclose(chances[found], best, rtol=1e-3)


def test_a_text_beyond_the_last_position_is_refused(imported: tuple[str, BertForMaskedLM]) -> None:
    with refuses("fill_mask.too_long", found=101, allowed=100):
        fill_mask(imported[0], [" ".join(["w1"] * (POSITIONS - 2) + ["[MASK]"])])
