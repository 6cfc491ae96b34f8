"""Times tokenizers in tokens per second: our WordPiece and Hugging Face's ``tokenizers``.

    python -m benchmarks.tokenizer [--text FILE] [--vocab DIR]

Both alternately encode the same lines with the same vocabulary and one thread. Without arguments
the text is Python's own manual (``pydoc_data.topics``), and the vocabulary is trained on it.
"""

import argparse
import os
import pydoc_data.topics
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library reads this when it first encodes
os.environ["RAYON_NUM_THREADS"] = "1"

from benchmarks.report import interleaved, median_ratio, report
from bert_jax.errors import UserError
from bert_jax.interop.hf_tokenizer import library_pipeline
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.text import load_tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

PACKAGES = ("tokenizers",)


def main() -> None:
    """Prints rates of our tokenizer, with cached and with new words, of the peer, and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="UTF-8 text, encoded line by line")
    parser.add_argument("--vocab", type=Path, help="WordPiece tokenizer directory")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds per tokenizer")
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8") if arguments.text else manual()
    ours = open_or_train(arguments.vocab, text)
    measure(ours, [line for line in text.splitlines() if line], rounds=arguments.rounds)


def manual() -> str:
    """Returns the installed Python's manual: half a megabyte of English with code."""
    return "\n".join(pydoc_data.topics.topics.values())


def open_or_train(directory: Path | None, text: str) -> WordPieceTokenizer:
    """Returns the tokenizer in ``directory``. If None, trains one of 8,192 pieces on ``text``.

    Raises:
        UserError: if the directory has no WordPiece tokenizer.
    """
    if directory is not None:
        tokenizer = load_tokenizer(directory)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            corpus = Path(scratch) / "text.txt"
            corpus.write_text(text, encoding="utf-8")
            output = Path(scratch) / "tokenizer"
            tokenizer = train_vocab(
                VocabSection(input=(str(corpus),), output=str(output), size=8192)
            )
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(
            "benchmark.wordpiece", f"found no WordPiece tokenizer in {directory}", place="--vocab"
        )
    return tokenizer


def measure(ours: WordPieceTokenizer, lines: list[str], *, rounds: int) -> None:
    """Times the encodings alternately and prints the medians.

    Args:
        ours: the tokenizer to measure.
        lines: lines to encode.
        rounds: number of timings.
    """
    peer = library_pipeline(ours)

    def encode_with_peer() -> list[list[int]]:
        return [e.ids for e in peer.encode_batch_fast(lines, add_special_tokens=False)]

    def encode_anew() -> list[list[int]]:
        ours._ids_of_word.clear()  # the cache of words
        return ours.encode_batch(lines)

    # "ours, new words" is last: it fills the word cache for "ours" in the next round.
    runs: dict[str, Callable[[], list[list[int]]]] = {
        "ours": lambda: ours.encode_batch(lines),
        "tokenizers": encode_with_peer,
        "ours, new words": encode_anew,
    }
    tokens = {name: sum(map(len, run())) for name, run in runs.items()}
    seconds = interleaved(runs, rounds=rounds)
    size = {"megabytes": sum(len(line.encode()) for line in lines) / 1e6, "lines": len(lines)}
    for name, figure, peer_name in (
        ("tokenizers", "tokenizer.peer", "tokenizers encode_batch_fast, one thread"),
        ("ours", "tokenizer.rate", None),
        ("ours, new words", "tokenizer.rate_cold", None),
    ):
        report(
            figure,
            tokens[name] / statistics.median(seconds[name]),
            "tokens/s/core",
            peer=peer_name,
            packages=PACKAGES,
            tokens=tokens[name],
            vocab_size=ours.vocab_size,
            **size,
        )
    for name, figure in (("ours", "ratio"), ("ours, new words", "ratio_cold")):
        report(
            f"tokenizer.{figure}",
            median_ratio(seconds["tokenizers"], seconds[name]),
            "x",
            peer="tokenizers encode_batch_fast, one thread",
            packages=PACKAGES,
            target=0.9,
        )


if __name__ == "__main__":
    main()
