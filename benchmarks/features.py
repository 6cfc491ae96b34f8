"""Times feature extraction in sentences per second: ours and Hugging Face's PyTorch model.

    python -m benchmarks.features [--checkpoint HF_DIR] [--table SST2_TRAIN.tsv] [--count N]

Both compute mean features of the same sentences alternately, in float32 with batches of 32 on all
cores. Ours uses `FeatureExtractor`. Hugging Face's model gets sentences sorted by length, with each
batch padded to its longest sentence. Without a checkpoint, the encoder has 6 layers of width 384
with random weights. Without a table, the sentences are from this Python's documentation.
"""

import argparse
import csv
import json
import pydoc_data.topics
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import interleaved, median_ratio, report
from bert_jax.feature_extraction.extractor import (
    ExtractionSettings,
    FeatureExtractor,
    select_layers,
)
from bert_jax.feature_extraction.texts import InputText
from bert_jax.inference.bucketed import model_of_run
from bert_jax.runs.run_directory import open_run
from bert_jax.verbs.import_checkpoint import import_checkpoint

BATCH = 32
PACKAGES = ("jax", "flax", "torch", "transformers")


def main() -> None:
    """Measures and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--checkpoint", type=Path, help="Hugging Face BERT with its tokenizer")
    parser.add_argument("--table", type=Path, help="table with the column sentence")
    parser.add_argument("--count", type=int, default=2000, help="sentences")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        table = None if arguments.table is None else cut_table(arguments, root)
        sentences = python_docs(arguments.count) if table is None else column(table, "sentence")
        source = arguments.checkpoint or random_checkpoint(root / "hf", sentences)
        run_dir = import_checkpoint(str(source), str(root / "run"))
        rates(source, run_dir, sentences, rounds=arguments.rounds)


def rates(source: Path, run_dir: Path, sentences: list[str], *, rounds: int) -> None:
    """Times ours and Hugging Face's model on the same sentences, alternately."""
    ours, extractor = our_features(run_dir, sentences)
    theirs, padding = torch_features(source, sentences, pool="mean")
    np.testing.assert_allclose(ours(), theirs(), atol=1e-4)
    seconds = interleaved({"bert_jax": ours, "hf_torch": theirs}, rounds=rounds)
    facts = {"sentences": len(sentences), "batch_size": BATCH, "rounds": rounds, "pool": "mean"}
    for name, taken in seconds.items():
        rate = len(sentences) / statistics.median(taken)
        share = extractor.counts.padding if name == "bert_jax" else padding()
        peer = None if name == "bert_jax" else name
        report(
            *("features.rate", rate, "sentences/s"),
            peer=peer,
            packages=PACKAGES,
            padding=round(share, 4),
            **facts,
        )
    ratio = median_ratio(seconds["hf_torch"], seconds["bert_jax"])
    report("features.ratio", ratio, "x", peer="hf_torch", packages=PACKAGES, **facts)


def our_features(
    run_dir: Path, sentences: list[str]
) -> tuple[Callable[[], np.ndarray], FeatureExtractor]:
    """Returns a function that computes features of the last layer, and the extractor it uses."""
    model = model_of_run(open_run(str(run_dir)), checkpoint="last")
    layers = select_layers("last", depth=model.architecture.num_hidden_layers)
    settings = ExtractionSettings(layers=layers, batch_size=BATCH)
    extractor = FeatureExtractor(settings, model)
    texts = [InputText(line, text) for line, text in enumerate(sentences, start=1)]
    return lambda: np.concatenate([found.vectors for found in extractor(texts)]), extractor


def torch_features(
    source: Path, sentences: list[str], *, pool: str
) -> tuple[Callable[[], np.ndarray], Callable[[], float]]:
    """Returns two functions. They compute features with PyTorch and return the share of padding."""
    import torch
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.BertModel.from_pretrained(source, dtype=torch.float32).eval()
    pieces = positions = 0

    def run() -> np.ndarray:
        nonlocal pieces, positions
        order = np.argsort([len(text) for text in sentences])
        found = np.empty((len(sentences), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                members = order[start : start + BATCH]
                batch = tokenizer(
                    [sentences[at] for at in members],
                    padding=True,
                    truncation=True,
                    max_length=512,
                    return_tensors="pt",
                )
                mask = batch["attention_mask"]
                pieces, positions = pieces + int(mask.sum()), positions + mask.numel()
                hidden = model(**batch).last_hidden_state
                if pool == "cls":
                    found[members] = hidden[:, 0].numpy()
                    continue
                summed = (hidden * mask[..., None]).sum(dim=1)
                found[members] = (summed / mask.sum(dim=1, keepdim=True)).numpy()
        return found

    return run, lambda: 1 - pieces / positions


def cut_table(arguments: argparse.Namespace, root: Path) -> Path:
    """Writes the table's first rows to a new file."""
    lines = arguments.table.read_text(encoding="utf-8").splitlines()[: arguments.count + 1]
    path = root / "table.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def column(table: Path, name: str) -> list[str]:
    """Returns a column of a table."""
    with table.open(encoding="utf-8", newline="") as file:
        return [row[name] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def python_docs(count: int) -> list[str]:
    """Returns sentences of this Python's documentation."""
    text = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
    return [part for part in re.split(r"(?<=[.!?]) (?=[A-Z])", text) if len(part) < 800][:count]


def random_checkpoint(
    directory: Path, sentences: list[str], *, kind: str = "BertModel", unused: int = 0
) -> Path:
    """Saves an encoder of 6 layers, 384 wide, with the sentences' most frequent words.

    `kind` is its class, and `unused` the number of further pieces that no text has.
    """
    import transformers

    words = Counter(re.findall(r"[a-z]+|[^\sa-z]", " ".join(sentences).lower()))
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(w for w, _ in words.most_common(8000)),
        *(f"[unused{number}]" for number in range(unused)),
    ]
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    getattr(transformers, kind)(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


if __name__ == "__main__":
    main()
