"""Compares an imported encoder's sentence embeddings with Hugging Face's.

    python -m benchmarks.sentence_parity CHECKPOINT SENTENCES.txt [--count 200]

The checkpoint is a Hugging Face directory, which `bert-jax import` imports. Both sides embed the
first ``--count`` sentences with their own tokenizer. An embedding is the normalised mean over all
tokens except padding. Prints the largest absolute difference, and the number of sentences that the
tokenizers split differently.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax import nnx

from benchmarks.report import report
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.text import Tokenizer
from bert_jax.verbs.import_checkpoint import import_checkpoint

LENGTH = 128


def main() -> None:
    """Prints the largest difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    lines = filter(None, map(str.strip, arguments.sentences.read_text().splitlines()))
    sentences = [line for line, _ in zip(lines, range(arguments.count), strict=False)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.checkpoint)
    encoded = tokenizer(
        sentences, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
    )
    theirs = torch_embeddings(arguments.checkpoint, encoded)
    with tempfile.TemporaryDirectory() as directory:
        run = open_run(import_checkpoint(str(arguments.checkpoint), f"{directory}/run"))
        ids = np.stack([row_of(sentence, run.tokenizer) for sentence in sentences])
        loaded = load_params(run, checkpoint="last", mesh=open_mesh(one_device=True))
        ours = jax.device_get(
            jax.jit(embed, static_argnums=0)(loaded.model.graphdef, loaded.params, ids)
        )
    facts = {"sentences": len(sentences), "packages": ["jax", "torch", "transformers"]}
    differing = int((ids != encoded["input_ids"].numpy()).any(axis=1).sum())
    report("sentence_parity.tokens", differing, "sentences", peer="hf_torch", **facts)
    report(
        "sentence_parity.embeddings",
        float(np.abs(ours - theirs).max()),
        "largest difference",
        peer="hf_torch",
        **facts,
    )


def torch_embeddings(checkpoint: Path, encoded: transformers.BatchEncoding) -> np.ndarray:
    """Returns Hugging Face's embeddings [sentences, D]."""
    model = transformers.BertModel.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        hidden = model(**encoded).last_hidden_state
    weights = encoded["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1)).numpy()


def row_of(sentence: str, tokenizer: Tokenizer) -> np.ndarray:
    """Returns ``[CLS] sentence [SEP]``, truncated and padded."""
    special = tokenizer.special
    row = np.full(LENGTH, special.pad, np.int32)
    kept = [special.cls, *tokenizer.encode(sentence)[: LENGTH - 2], special.sep]
    row[: len(kept)] = kept
    return row


def embed(graphdef: nnx.GraphDef, params: object, ids: jax.Array) -> jax.Array:
    """Returns our embeddings [sentences, D]. The id 0 is padding."""
    real = ids != 0
    batch = {
        "input_ids": ids,
        "token_type_ids": jnp.zeros_like(ids),
        "segment_ids": real.astype(jnp.int32),
    }
    hidden = nnx.merge(graphdef, params).hidden(batch, dropout_key=None)
    weights = real[..., None].astype(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


if __name__ == "__main__":
    main()
