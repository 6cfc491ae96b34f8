"""Runs train steps of Hugging Face's PyTorch models on request, for `benchmarks.train_step`.

It runs in a separate process, because PyTorch's threads and memory would slow down other work in
the same process. Each line on standard input is a number of steps. After running them the process
prints ``done``.
"""

import sys
from typing import Any

import numpy as np
import torch
import transformers

SPECIAL = ("pad", "bos", "eos", "cls", "sep")  # tokens whose ids must be in the vocabulary


def main() -> None:
    """Serves requests until standard input ends, with all cores and SDPA attention."""
    layers, hidden, rows, length, predictions, vocab = map(int, sys.argv[1:7])
    model = make_model(sys.argv[7], layers=layers, hidden=hidden, vocab=vocab).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    batch = make_batch(rows, length, predictions, vocab)
    if sys.argv[7] != "bert":
        del batch["token_type_ids"], batch["next_sentence_label"]
    for line in sys.stdin:
        for _ in range(int(line)):
            optimizer.zero_grad(set_to_none=True)
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print("done", flush=True)


def make_model(
    kind: str, *, layers: int, hidden: int, vocab: int, bert_dropout: float = 0.1
) -> Any:
    """Returns a model by name, ``modernbert_sparse`` with logits of masked pieces only."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
    }
    if kind == "bert":
        config = transformers.BertConfig(
            **sizes,
            intermediate_size=4 * hidden,
            hidden_dropout_prob=bert_dropout,
            attention_probs_dropout_prob=bert_dropout,
        )
        return transformers.BertForPreTraining(config)
    if kind == "deberta":  # settings of DeBERTaV3; the class has no SDPA attention
        settings: Any = transformers.DebertaV2Config
        return transformers.DebertaV2ForMaskedLM(
            settings(
                **sizes,
                intermediate_size=4 * hidden,
                relative_attention=True,
                position_buckets=256,
                norm_rel_ebd="layer_norm",
                share_att_key=True,
                pos_att_type=["p2c", "c2p"],
                position_biased_input=False,
            )
        )
    special: dict[str, Any] = {f"{name}_token_id": 0 for name in SPECIAL}
    config = transformers.ModernBertConfig(
        **sizes,
        **special,
        intermediate_size=3 * hidden // 2,
        sparse_prediction=kind == "modernbert_sparse",
    )
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")


def make_batch(rows: int, length: int, predictions: int, vocab: int) -> dict[str, torch.Tensor]:
    """Returns full rows of random pieces, and labels that are -100 at unmasked positions."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, vocab, (rows, length))
    labels = np.full(ids.shape, -100)
    for row in range(rows):
        chosen = rng.permutation(length)[:predictions]
        labels[row, chosen] = ids[row, chosen]
    arrays = {
        "input_ids": ids,
        "token_type_ids": np.tile(np.arange(length) >= length // 2, (rows, 1)).astype(np.int64),
        "attention_mask": np.ones_like(ids),
        "labels": labels,
        "next_sentence_label": rng.integers(0, 2, rows),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


if __name__ == "__main__":
    main()
