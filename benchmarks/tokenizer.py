"""Times tokenizers in tokens per second: ours and Hugging Face's ``tokenizers``.

    python -m benchmarks.tokenizer [--text FILE] [--vocab DIR] [--scripts FILE ...]

Both alternately encode the same lines with the same vocabulary and one thread: WordPiece,
byte-level BPE and unigram pieces. Without arguments the text is Python's own manual
(``pydoc_data.topics``), and the vocabularies are trained on it.

With ``--scripts``, byte-level BPE and unigram pieces are trained on the first two thirds of the
files together. Each file then has one line per algorithm: the ratio on new text, its last third.
"""

import argparse
import json
import os
import pydoc_data.topics
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library reads this when it first encodes
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers

from benchmarks.report import interleaved, median_ratio, report
from bert_jax.errors import UserError
from bert_jax.interop.hf_tokenizer import library_pipeline
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.text import load_tokenizer
from bert_jax.text.fast_pipeline import WORTH
from bert_jax.text.library_tokenizer import LibraryTokenizer, read_pipeline
from bert_jax.text.sentence_piece import SentencePieceTokenizer
from bert_jax.text.special_rows import ROLE_SETTINGS
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.text.wordpiece import WordPieceTokenizer

PACKAGES = ("tokenizers", "fastokens")
_LINES = 500  # of a batch


def main() -> None:
    """Prints rates of our tokenizer, with cached and with new words, of the peer, and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="UTF-8 text, encoded line by line")
    parser.add_argument("--vocab", type=Path, help="WordPiece tokenizer directory")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds per tokenizer")
    parser.add_argument("--scripts", type=Path, nargs="+", help="UTF-8 text, one file per script")
    arguments = parser.parse_args()
    if arguments.scripts:
        measure_scripts(arguments.scripts, rounds=arguments.rounds)
        return
    text = arguments.text.read_text(encoding="utf-8") if arguments.text else manual()
    lines = [line for line in text.splitlines() if line]
    measure(open_or_train(arguments.vocab, text), lines, rounds=arguments.rounds)
    for algorithm in ("byte_bpe", "unigram"):
        ours = train_library(algorithm, text)
        measure(ours, lines, rounds=arguments.rounds, name=f"tokenizer.{algorithm}")


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


def measure_scripts(files: Sequence[Path], *, rounds: int) -> None:
    """Times new lines of each file. The table of words knows the lines before them.

    Args:
        files: text, one file per script.
        rounds: number of slices of the new lines. Both tokenizers encode each slice once.
    """
    known, new = {}, {}
    for file in files:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
        start = len(lines) * 2 // 3
        known[file.stem], new[file.stem] = lines[:start], lines[start:]
    text = "\n".join(line for lines in known.values() for line in lines)
    for algorithm in ("byte_bpe", "unigram"):
        ours = train_library(algorithm, text, size=40_000)
        peer = tokenizers.Tokenizer.from_str(json.dumps(ours.spec))
        for script, lines in new.items():
            for start in range(0, len(known[script]), _LINES):
                ours.encode_batch(known[script][start : start + _LINES])
            seconds: dict[str, list[float]] = {"ours": [], "tokenizers": []}
            for number in range(rounds):
                part = lines[number::rounds][:_LINES]
                start = time.perf_counter()
                encoded = ours.encode_batch(part)
                seconds["ours"].append(time.perf_counter() - start)
                start = time.perf_counter()
                found = peer.encode_batch_fast(part, add_special_tokens=False)
                wanted = [encoding.ids for encoding in found]
                seconds["tokenizers"].append(time.perf_counter() - start)
                assert encoded == wanted, "our ids differ from the library's"
            report(
                f"tokenizer.{algorithm}.{script}.ratio",
                median_ratio(seconds["tokenizers"], seconds["ours"]),
                "x",
                peer="tokenizers encode_batch_fast, one thread",
                packages=PACKAGES,
                target=3.0,
                vocab_size=ours.vocab_size,
                lines=len(lines),
            )


def train_library(
    algorithm: Literal["byte_bpe", "unigram"], text: str, *, size: int = 4096
) -> LibraryTokenizer:
    """Trains a tokenizer of ``size`` pieces on ``text`` that the tokenizers library runs.

    The unigram pieces of SentencePiece get the steps of XLM-R, without its normalization.
    """
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "text.txt"
        corpus.write_text(text, encoding="utf-8")
        output = Path(scratch) / "tokenizer"
        tokenizer = train_vocab(
            VocabSection(
                input=(str(corpus),),
                output=str(output),
                size=size,
                algorithm=algorithm,
                lower_case=False,
            )
        )
    if isinstance(tokenizer, LibraryTokenizer):
        tokenizer.encode_batch(["a " * WORTH])  # opens fastokens
        return tokenizer
    assert isinstance(tokenizer, SentencePieceTokenizer)
    pieces = [*((piece, 0.0) for piece in SPECIAL_PIECES), *tokenizer.scores().items()]
    marks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    steps = [{"type": "WhitespaceSplit"}, marks]
    roles = dict(zip(ROLE_SETTINGS, SPECIAL_PIECES, strict=True))
    return read_pipeline(
        {
            "model": {"type": "Unigram", "unk_id": 1, "vocab": pieces},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        },
        {**roles, "separators": 1},
        source=algorithm,
    )


def measure(ours: Tokenizer, lines: list[str], *, rounds: int, name: str = "tokenizer") -> None:
    """Times the encodings alternately and prints the medians.

    Args:
        ours: the tokenizer to measure, WordPiece or of the tokenizers library.
        lines: lines to encode.
        rounds: number of timings.
        name: first part of the figures' names.
    """
    if isinstance(ours, LibraryTokenizer):
        peer = tokenizers.Tokenizer.from_str(json.dumps(ours.spec))
        tables = [ours._words, ours._words._parts] if ours._words is not None else []
    else:
        assert isinstance(ours, WordPieceTokenizer)
        peer, tables = library_pipeline(ours), [ours._ids_of_word]

    def encode_with_peer() -> list[list[int]]:
        return [e.ids for e in peer.encode_batch_fast(lines, add_special_tokens=False)]

    def encode_anew() -> list[list[int]]:
        for table in tables:
            table.clear()
        return ours.encode_batch(lines)

    # "ours, new words" is last: it fills the word cache for "ours" in the next round.
    runs: dict[str, Callable[[], list[list[int]]]] = {
        "ours": lambda: ours.encode_batch(lines),
        "tokenizers": encode_with_peer,
        "ours, new words": encode_anew,
    }
    tokens = {run: sum(map(len, encode())) for run, encode in runs.items()}
    seconds = interleaved(runs, rounds=rounds)
    size = {"megabytes": sum(len(line.encode()) for line in lines) / 1e6, "lines": len(lines)}
    for run, figure, peer_name in (
        ("tokenizers", "peer", "tokenizers encode_batch_fast, one thread"),
        ("ours", "rate", None),
        ("ours, new words", "rate_cold", None),
    ):
        report(
            f"{name}.{figure}",
            tokens[run] / statistics.median(seconds[run]),
            "tokens/s/core",
            peer=peer_name,
            packages=PACKAGES,
            tokens=tokens[run],
            vocab_size=ours.vocab_size,
            **size,
        )
    for run, figure in (("ours", "ratio"), ("ours, new words", "ratio_cold")):
        report(
            f"{name}.{figure}",
            median_ratio(seconds["tokenizers"], seconds[run]),
            "x",
            peer="tokenizers encode_batch_fast, one thread",
            packages=PACKAGES,
            target=0.9,
        )


if __name__ == "__main__":
    main()
