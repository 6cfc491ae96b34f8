"""Reads ``vocab.json`` and ``merges.txt`` of older RoBERTa checkpoints."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object, read_text

VOCABULARY_FILE = "vocab.json"
MERGES_FILE = "merges.txt"


def read_roberta_files(directory: epath.Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of the ``tokenizer.json`` that Hugging Face would make of the two files.

    `settings` is the content of ``tokenizer_config.json``; ``add_prefix_space`` counts. Source:
    `RobertaConverter` in Hugging Face transformers, `convert_slow_tokenizer.py`. Raises UserError
    if a file is missing or malformed.
    """
    path = directory / VOCABULARY_FILE
    vocabulary = read_json_object(path)
    lines = read_text(directory / MERGES_FILE).split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges = [line.split(" ") for line in lines if line]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        raise UserError(
            "tokenizer.merge",
            f'found "{" ".join(wrong)}", allowed: two pieces in each line',
            place=directory / MERGES_FILE,
        )
    prefix = settings.get("add_prefix_space") is True
    level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True}
    return {
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "vocab": vocabulary,
            "merges": merges,
        },
        "pre_tokenizer": level,
        "decoder": {**level, "add_prefix_space": True},
        # The class of the tokenizer determines the rows of pairs.
        **_roberta_rows(vocabulary, prefix=prefix),
    }


def _roberta_rows(vocabulary: Mapping[str, int], *, prefix: bool) -> dict[str, Any]:
    if not {"<s>", "</s>"} <= vocabulary.keys():
        return {}
    return {
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", vocabulary["</s>"]],
            "cls": ["<s>", vocabulary["<s>"]],
            "trim_offsets": True,
            "add_prefix_space": prefix,
        }
    }
