"""The scripts that `benchmarks.corpus` compares with, and models with random weights."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

BATCH: Final = 32
_SIZES: Final = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "initializer_range": 0.05,
}
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def classify(corpus: str, model: str, target: str) -> None:
    """Classifies documents with `datasets`, `tokenizers` and PyTorch, sorted by length."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model).eval()
    names = network.config.id2label

    def labels(batch: Any) -> np.ndarray:
        with torch.inference_mode():
            return network(**batch).logits.argmax(-1).numpy()

    rows = _mapped(corpus, tokenizer, length=512)
    found = _in_batches(rows["input_ids"], tokenizer, labels)
    _write(rows, [names[int(label)] for label in found], target)


def host(root: Path, corpus: Path, model: Path, *, length: int) -> Callable[[], None]:
    """Returns a function that does all of `classify` but the model."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model)

    def run() -> None:
        rows = _mapped(str(corpus), tokenizer, length=length)
        found = _in_batches(
            rows["input_ids"], tokenizer, lambda batch: np.zeros(len(batch["input_ids"]))
        )
        _write(rows, [str(label) for label in found], str(root / "host.parquet"))

    run()
    return run


def encode(corpus: str, model: str, target: str) -> None:
    """Encodes documents with sentence-transformers' processes, one per core."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from sentence_transformers import SentenceTransformer

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    network = SentenceTransformer(model, device="cpu")
    table = pa.concat_tables([pq.read_table(path) for path in sorted(Path(corpus).glob("*"))])
    pool = network.start_multi_process_pool(["cpu"] * cores)
    vectors = network.encode(table["text"].to_pylist(), pool=pool, batch_size=BATCH)
    network.stop_multi_process_pool(pool)
    pq.write_table(pa.table({"id": table["id"], "vector": list(vectors)}), target)


def _mapped(corpus: str, tokenizer: Any, *, length: int) -> Any:
    import datasets

    datasets.disable_progress_bars()
    datasets.disable_caching()
    rows = datasets.load_dataset("parquet", data_files=f"{corpus}/*.parquet", split="train")
    return rows.map(
        lambda batch: tokenizer(batch["text"], truncation=True, max_length=length), batched=True
    )


def _in_batches(
    ids: Sequence[Sequence[int]], tokenizer: Any, compute: Callable[[Any], np.ndarray]
) -> np.ndarray:
    ids = list(ids)
    order = np.argsort([-len(each) for each in ids], kind="stable")
    found = np.zeros(len(ids))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        batch = tokenizer.pad({"input_ids": [ids[at] for at in chosen]}, return_tensors="pt")
        found[chosen] = compute(batch)
    return found


def _write(rows: Any, labels: Sequence[str], target: str) -> None:
    dropped = [name for name in rows.column_names if name != "id"]
    rows.remove_columns(dropped).add_column("label", list(labels)).to_parquet(target)


def random_classifier(directory: Path, words: Sequence[str]) -> Path:
    """Writes a classifier with random weights and the most frequent words as its vocabulary."""
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = _tokenizer(directory, words)
    labels = {0: "bad", 1: "fair", 2: "good"}
    config = BertConfig(
        vocab_size=len(tokenizer),
        id2label=labels,
        label2id={name: at for at, name in labels.items()},
        problem_type="single_label_classification",
        **_SIZES,
    )
    BertForSequenceClassification(config).save_pretrained(directory)
    return directory


def random_encoder(directory: Path, words: Sequence[str]) -> Path:
    """Writes a sentence-transformers model with random weights, mean pooling and 256 tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as parts
    from transformers import BertConfig, BertModel

    inner = directory.with_name(f"{directory.name}-bert")
    tokenizer = _tokenizer(inner, words)
    config = BertConfig(vocab_size=len(tokenizer), **_SIZES)
    BertModel(config, add_pooling_layer=False).save_pretrained(inner)
    modules = [
        parts.Transformer(str(inner), max_seq_length=256),
        parts.Pooling(_SIZES["hidden_size"], "mean"),
        parts.Normalize(),
    ]
    SentenceTransformer(modules=modules, device="cpu").save(str(directory))
    return directory


def _tokenizer(directory: Path, words: Sequence[str]) -> Any:
    from transformers import BertTokenizer

    directory.mkdir()
    counts = Counter(word.lower() for word in words if word.isalpha())
    letters = sorted({*"".join(counts)})
    pieces = [*_SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    frequent = [word for word, _ in counts.most_common(20_000) if len(word) > 1]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*pieces, *frequent]))
    tokenizer = BertTokenizer.from_pretrained(str(directory))
    tokenizer.save_pretrained(directory)
    return tokenizer


if __name__ == "__main__":
    {"classify": classify, "encode": encode}[sys.argv[1]](*sys.argv[2:])
