"""Small tokenizers of the kinds that the tokenizers library runs, and text in many scripts."""

import json
import math
import pydoc_data.topics
import random
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    CamembertTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

# First and last character of ten scripts, and of emoji.
_SCRIPTS = {
    "latin": "az",
    "accents": "ÀÿĀſ",
    "greek": "αω",
    "cyrillic": "ая",
    "hebrew": "את",
    "arabic": "ءي",
    "devanagari": "अह",
    "thai": "กฮ",
    "kana": "ぁゖ",
    "han": "一丿",
    "hangul": "가갛",
    "emoji": "😀😿",
}
_MARKS = "\u0301\u0308\u0327ािीु์ิًّ\u200d\ufe0f"
_ODD = ["  ", "   ", "\n", "\t", "\r\n", "\u00a0", "\u200b", "\u3000", "'s", "…", "!?", "(", ")."]
_ODD += [
    '"',
    "«",
    "»",
    "3.14",
    "2024",
    "٣",
    "①",
    "ﬁ",
    "İ",
    "ẞ",
    "C++",
    "a_b",
    "don't",
    "\u0000",
    "\ufffd",
]
SPECIAL_TEXTS = ["[SEP]", "</s>", "<mask>", "[MASK]", "<s>", "<pad>", "[UNK]", "<unk>"]
MODERNBERT_TEXTS = ["[unused1]", "|||IP_ADDRESS|||", "||IP_ADDRESS|||", "      "]


def lines_of_scripts(count: int, *, seed: int, also: list[str]) -> list[str]:
    """Returns lines that mix words of many scripts, marks, spaces, punctuation and `also`."""
    rng = random.Random(seed)
    english = " ".join(list(pydoc_data.topics.topics.values())[:30]).split()

    def word() -> str:
        choice = rng.random()
        if choice < 0.3:
            return rng.choice(english)
        if choice < 0.5:
            return rng.choice([*_ODD, *also])
        first, last = (_SCRIPTS[rng.choice([*_SCRIPTS])] * 2)[:2]
        letters = [chr(rng.randint(ord(first), ord(last))) for _ in range(rng.randint(1, 7))]
        if rng.random() < 0.3:
            letters.insert(rng.randint(0, len(letters)), rng.choice(_MARKS))
        return "".join(letters)

    def line() -> str:
        joints = [rng.choice(["", " ", " ", " ", "  ", "\n"]) for _ in range(rng.randint(0, 14))]
        edge = rng.choice(["", "", " ", "  ", "\n"])
        return edge + "".join(joint + word() for joint in joints) + rng.choice(["", "", " ", "\n"])

    return [line() for _ in range(count)]


@cache
def _byte_bpe(special: tuple[str, ...], size: int = 700) -> dict[str, Any]:
    """Returns vocabulary and merges of byte-level BPE."""
    pipeline = tokenizers.Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=list(special),
    )
    pipeline.train_from_iterator(lines_of_scripts(600, seed=1, also=[]), trainer)
    model = json.loads(pipeline.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


@cache
def roberta() -> RobertaTokenizer:
    """Returns Hugging Face's tokenizer of RoBERTa. Its mask has the last id."""
    model = _byte_bpe(("<s>", "<pad>", "</s>", "<unk>"))
    vocabulary = {**model["vocab"], "<mask>": len(model["vocab"])}
    return RobertaTokenizer(vocab=vocabulary, merges=model["merges"], model_max_length=64)


@cache
def modernbert() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like ModernBERT's, with runs of spaces and ordinary added tokens."""
    model = _byte_bpe(())
    pipeline = tokenizers.Tokenizer(models.BPE(vocab=model["vocab"], merges=model["merges"]))
    pipeline.normalizer = normalizers.NFC()
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_special_tokens([AddedToken("<|padding|>", special=True)])
    runs = [AddedToken(" " * length, normalized=True) for length in range(8, 1, -1)]
    pipeline.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True), *runs])
    names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    pipeline.add_special_tokens([AddedToken(name, special=True) for name in names])
    pipeline.add_special_tokens([AddedToken("[MASK]", special=True, lstrip=True)])
    pipeline.add_tokens([AddedToken(f"[unused{number}]", normalized=True) for number in range(3)])
    ids = pipeline.token_to_id
    pipeline.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, ids(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pipeline,
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name[1:-1].lower()}_token": name for name in [*names, "[MASK]"]},
    )


@cache
def _unigram() -> list[tuple[str, float]]:
    """Returns pieces and scores: all characters, and the most frequent beginnings and ends."""
    counts: Counter[str] = Counter()
    for line in lines_of_scripts(500, seed=2, also=[]):
        for word in line.split():
            marked = f"▁{word}"
            counts.update(marked)
            counts.update(marked[:end] for end in range(2, min(len(marked), 9) + 1))
            counts.update(word[start:] for start in range(1, min(len(word), 8) - 1))
    kept = [piece for piece in counts if len(piece) == 1]
    kept += [piece for piece, _ in counts.most_common(1000) if len(piece) > 1]
    return [(piece, math.log(counts[piece] / counts.total())) for piece in kept]


@cache
def xlm_roberta() -> XLMRobertaTokenizer:
    """Returns Hugging Face's tokenizer of XLM-R."""
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary = [*special, *_unigram(), ("<mask>", 0.0)]
    return XLMRobertaTokenizer(vocab=vocabulary, model_max_length=64)


@cache
def camembert() -> CamembertTokenizer:
    """Returns Hugging Face's tokenizer of CamemBERT, whose separators follow other pieces."""
    first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)]
    special = [*first, ("<unk>NOTUSED", -100.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocabulary = [*special, *_unigram(), ("<mask>", 0.0)]
    return CamembertTokenizer(vocab=vocabulary, model_max_length=64)


@cache
def gemma() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like Gemma's, which mmBERT has: ``▁`` for spaces, and pieces of bytes."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    pipeline = tokenizers.Tokenizer(
        models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    pipeline.normalizer = normalizers.Replace(" ", "▁")
    pipeline.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    pipeline.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    # Many characters have no piece of their own: they are pieces of bytes.
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        limit_alphabet=100,
        show_progress=False,
        special_tokens=[*names, *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    lines = lines_of_scripts(600, seed=1, also=[])
    # Pieces of several words would depend on the lines, which differ between versions of Python.
    words = (word for line in lines for word in re.findall(r" ?\w+|[^\w\s]", f" {line}"))
    pipeline.train_from_iterator(words, trainer)
    spec = json.loads(pipeline.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spec["added_tokens"] = [
        {"id": number, "content": name, **flags, "special": True}
        for number, name in enumerate(names)
    ]
    pipeline = tokenizers.Tokenizer.from_str(json.dumps(spec))
    pipeline.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("\n", normalized=False)])
    pipeline.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> $B <eos>",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pipeline,
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name[1:-1]}_token": name for name in names},
        **{"cls_token": "<bos>", "sep_token": "<eos>"},
    )


@cache
def llama() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like Llama 3's, which EuroBERT has. Padding is the last token."""
    model = _byte_bpe(())
    pipeline = tokenizers.Tokenizer(
        models.BPE(vocab=model["vocab"], merges=model["merges"], ignore_merges=True)
    )
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    pattern = tokenizers.Regex(rf"{letters}|\s*[\r\n]+|\s+(?!\S)|\s+")
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    pipeline.decoder = decoders.ByteLevel()
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    pipeline.add_special_tokens([AddedToken(name, special=True) for name in names])
    ids = pipeline.token_to_id
    pipeline.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{names[0]} $A {names[1]}",
                pair=f"{names[0]} $A {names[1]} $B {names[1]}",
                special_tokens=[(name, ids(name)) for name in names[:2]],
            ),
        ]
    )
    roles = ("cls_token", 0), ("sep_token", 1), ("pad_token", 1), ("mask_token", 2)
    return PreTrainedTokenizerFast(
        tokenizer_object=pipeline,
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        **{role: names[at] for role, at in roles},
    )


KINDS = {
    "roberta": roberta,
    "modernbert": modernbert,
    "gemma": gemma,
    "xlm_roberta": xlm_roberta,
    "camembert": camembert,
}


def saved(kind: str, directory: Path) -> Path:
    """Saves a tokenizer as Hugging Face does. Returns its directory."""
    KINDS[kind]().save_pretrained(directory)
    return directory
