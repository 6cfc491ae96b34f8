"""An imported random encoder, and its hidden states in Hugging Face."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from click.testing import Result
from transformers import BertModel

from bert_jax.verbs.import_checkpoint import import_checkpoint
from tests.interop.hf_checkpoints import hf_config, hf_model
from tests.project import invoke

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *(f"w{number}" for number in range(60)), *(f"##x{n}" for n in range(9)), "a"]
IDS = {piece: number for number, piece in enumerate(PIECES)}


def make_run(directory: Path, *, layers: int = 5) -> tuple[Path, BertModel]:
    """Imports a random encoder without pretraining heads."""
    source = directory / "hf"
    config = hf_config(vocab_size=len(PIECES), num_hidden_layers=layers, max_position_embeddings=40)
    model = hf_model(BertModel, config)
    model.save_pretrained(source)
    (source / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (source / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    return import_checkpoint(str(source), str(directory / "run")), model


def texts(count: int, *, seed: int = 0, longest: int = 30) -> list[str]:
    """Returns random texts of 1 to `longest` pieces. Some words have several pieces."""
    rng = np.random.default_rng(seed)
    made = []
    for size in rng.integers(1, longest // 2 + 1, count):
        words = [
            f"w{rng.integers(60)}" + (f"x{rng.integers(9)}" if rng.random() < 0.4 else "")
            for _ in range(size)
        ]
        made.append(" ".join(words))
    return made


def pieces_of(text: str) -> list[str]:
    """Splits a text from `texts` into pieces, without the tokenizer."""
    found = []
    for word in text.split():
        head, _, tail = word.partition("x")
        found += [head, *([f"##x{tail}"] if tail else [])]
    return found


def reference_states(model: BertModel, text: str, pair: str | None = None) -> np.ndarray:
    """Returns Hugging Face's hidden states of a text, [layers + 1, length, D]."""
    first = ["[CLS]", *pieces_of(text), "[SEP]"]
    second = [] if pair is None else [*pieces_of(pair), "[SEP]"]
    ids = torch.tensor([[IDS[piece] for piece in [*first, *second]]])
    types = torch.tensor([[0] * len(first) + [1] * len(second)])
    with torch.no_grad():
        output = model(input_ids=ids, token_type_ids=types, output_hidden_states=True)
    return np.stack([state[0].numpy() for state in output.hidden_states])


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def features(*arguments: object) -> Result:
    """Runs the verb `features`."""
    return invoke("features", *arguments)
