"""Files of Hugging Face's classes: ids and rows of `AutoTokenizer`, or refused.

A file that a class has saved is changed in one or two places: a part of ``tokenizer.json``, a
setting, the place that names the class, or an older file beside it.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import (
    AlbertTokenizer,
    AutoTokenizer,
    BertTokenizer,
    CamembertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from bert_jax.errors import UserError
from bert_jax.text import load_tokenizer
from tests.text.test_generated_pipelines import (
    ADDED,
    NORMALIZERS,
    PRE_TOKENIZERS,
    TEXTS,
    bpe,
    wordpieces,
)

Files = dict[str, Any]  # content of each file in a directory
Change = Callable[[Files], None]

MORE = [
    *("  ΟΔΟΣ Élan", "``the'' user", "the\u2028user\u00a0of ﬁ ½ "),
    *("a-b_c [E1] [e1] <e1>", "\u200bthe\u0007 user ", "Covid19 @@r ##@ \U00013000"),
]
CLASSES = {
    "bert": BertTokenizer,
    "roberta": RobertaTokenizer,
    "xlm-roberta": XLMRobertaTokenizer,
    "camembert": CamembertTokenizer,
    "albert": AlbertTokenizer,
}
READ = ("WordPieceTokenizer", "LibraryTokenizer")
NAMED = {"distilbert": "bert", "electra": "bert", "xmod": "xlm-roberta", "longformer": "roberta"}


@cache
def scores(first: tuple[str, ...]) -> list[tuple[str, float]]:
    rng = random.Random(1)
    return [
        (piece, 0.0 if piece in first else -rng.random() * 9 - 1)
        for piece in dict.fromkeys([*first, "the", "user", *bpe("marks")[0]])
    ]


@cache
def files_of(kind: str, directory: Path) -> Files:
    """Returns what the class saves."""
    roberta = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    theirs: Any
    if kind == "bert":
        theirs = BertTokenizer(vocab=wordpieces())
    elif kind == "roberta":
        vocabulary, pairs = bpe("bytes")
        merges: Any = pairs
        vocabulary = {piece: number for number, piece in enumerate([*roberta, *vocabulary])}
        theirs = RobertaTokenizer(vocab=vocabulary, merges=merges)
    elif kind == "albert":
        theirs = AlbertTokenizer(vocab=scores(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")))
    else:
        theirs = CLASSES[kind](vocab=scores(roberta))
    theirs.save_pretrained(directory)
    names = ("tokenizer.json", "tokenizer_config.json")
    return {name: json.loads((directory / name).read_text()) for name in names}


def state(part: Any) -> Any:
    """Returns a part of a pipeline as in a ``tokenizer.json``."""
    return None if part is None else json.loads(part.__getstate__())


def set_part(files: Files, *, part: str, value: Any) -> None:
    files["tokenizer.json"][part] = value


def set_option(files: Files, **options: Any) -> None:
    files["tokenizer.json"]["model"].update(options)


def set_setting(files: Files, **settings: Any) -> None:
    files["tokenizer_config.json"].update(settings)


def beside(files: Files, **content: Any) -> None:
    files.update({f"{name}.json": value for name, value in content.items()})


def add_tokens(files: Files, *, name: str, decoder: bool) -> None:
    """Adds tokens at the end, in tokenizer.json or in the settings."""
    spec = files["tokenizer.json"]
    vocabulary = spec["model"]["vocab"]
    pieces = [*vocabulary] if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
    size, listed = len(pieces), []
    for token in ADDED[name]:
        flags = {each: getattr(token, each) for each in FLAGS}
        known = token.content in pieces
        number = pieces.index(token.content) if known else (size := size + 1) - 1
        listed.append({"id": number, "content": token.content, **flags})
    if decoder:
        held = [*spec["added_tokens"], *listed]
        numbered = {
            str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in held
        }
        files["tokenizer_config.json"]["added_tokens_decoder"] = numbered
    else:
        spec["added_tokens"] += listed


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
STRIPPED = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), "▁")])


def template(*items: str) -> list[dict[str, Any]]:
    return [
        {("Sequence" if item in "AB" else "SpecialToken"): {"id": item, "type_id": 0}}
        for item in items
    ]


def rows(files: Files, *, separators: int, kind: str) -> None:
    """Writes another post-processor with the class's special pieces."""
    spec, config = files["tokenizer.json"], files["tokenizer_config.json"]
    ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
    cls, sep = config["cls_token"], config["sep_token"]
    if kind == "TemplateProcessing":
        special = {each: {"id": each, "ids": [ids[each]], "tokens": [each]} for each in (cls, sep)}
        pair = template(cls, "A", *[sep] * separators, "B", sep)
        single = template(cls, "A", sep)
        content: Any = {"single": single, "pair": pair, "special_tokens": special}
    else:
        content = {"cls": [cls, ids[cls]], "sep": [sep, ids[sep]]}
        if kind == "RobertaProcessing":
            content |= {"trim_offsets": True, "add_prefix_space": False}
    spec["post_processor"] = {"type": kind, **content}


def changes() -> dict[str, Change]:
    """Returns changes by name."""
    parts = {
        **{f"normalizer {name}": ("normalizer", part) for name, part in NORMALIZERS.items()},
        "normalizer nfkc": ("normalizer", normalizers.NFKC()),
        "normalizer lowercase": ("normalizer", normalizers.Lowercase()),
        "normalizer stripped": ("normalizer", STRIPPED),
        **{f"split {name}": ("pre_tokenizer", part) for name, part in PRE_TOKENIZERS.items()},
        "split marks never": (
            "pre_tokenizer",
            pre_tokenizers.Metaspace(prepend_scheme="never"),
        ),
        "rows none": ("post_processor", None),
    }
    options = [
        *({"max_input_chars_per_word": 7}, {"continuing_subword_prefix": "@@"}),
        *({"unk_token": "<unk>"}, {"unk_id": 0}, {"unk_id": 1}, {"unk_id": 3}),
        *({"byte_fallback": True}, {"ignore_merges": True}, {"dropout": 0.5}, {"fuse_unk": True}),
    ]
    settings: list[dict[str, Any]] = [
        *({"do_lower_case": False}, {"do_lower_case": True}, {"strip_accents": False}),
        *({"strip_accents": True}, {"tokenize_chinese_chars": False}, {"keep_accents": True}),
        *({"add_prefix_space": False}, {"add_prefix_space": True}, {"padding_side": "left"}),
        *({"additional_special_tokens": ["[E1]"]}, {"extra_special_tokens": ["<E1>", "the"]}),
        *({"added_tokens_decoder": {}}, {"unk_token": "the"}, {"mask_token": "user"}),
        *({"cls_token": "the"}, {"sep_token": "of"}, {"bos_token": "the"}, {"add_bos_token": True}),
        *({"extra_special_tokens": {"a": "[E1]"}, "additional_special_tokens": ["@USER"]},),
        *({"model_specific_special_tokens": {"a": "[E1]"}},),
        *({"clean_up_tokenization_spaces": False}, {"model_max_length": 7}, {"e1_token": "[E1]"}),
    ]
    older = [
        {"special_tokens_map": {"mask_token": "user"}},
        {"special_tokens_map": {"additional_special_tokens": ["[E1]"]}},
        {"special_tokens_map": {"unk_token": {"content": "<unk>", "lstrip": True}}},
    ]
    return {
        **{
            name: partial(set_part, part=part, value=state(value))
            for name, (part, value) in parts.items()
        },
        **{f"option {option}": partial(set_option, **option) for option in options},
        **{f"setting {setting}": partial(set_setting, **setting) for setting in settings},
        **{f"file {files}": partial(beside, **files) for files in older},
        **{
            f"added {name} {decoder}": partial(add_tokens, name=name, decoder=decoder)
            for name in ADDED
            for decoder in (False, True)
        },
        **{
            f"rows {kind} {separators}": partial(rows, separators=separators, kind=kind)
            for kind in ("BertProcessing", "RobertaProcessing", "TemplateProcessing")
            for separators in (1, 2)
        },
    }


def in_slow_files(files: Files) -> None:
    """Adds a special token and a word in the files of transformers 4.33 and earlier."""
    vocabulary = files["tokenizer.json"]["model"]["vocab"]
    files["added_tokens.json"] = {"[E1]": len(vocabulary), "@USER": len(vocabulary) + 1}
    files["special_tokens_map.json"] = {"additional_special_tokens": ["[E1]"]}


def name_class(files: Files, form: str, kind: str, rng: random.Random) -> None:
    """Names the class in one of the places that transformers reads."""
    config = files["tokenizer_config.json"]
    name = config.pop("tokenizer_class")
    types = [kind, *(model for model, of in NAMED.items() if of == kind)]
    if form == "config":
        files["config.json"] = {"model_type": kind, "tokenizer_class": name}
    elif form == "type":
        files["config.json"] = {"model_type": rng.choice(types)}
    else:
        config["tokenizer_class"] = name + form


def cases() -> list[tuple[str, str, tuple[str, ...]]]:
    """Returns the kind, the place that names the class, and the changes of each case."""
    rng, names = random.Random(3), [*changes(), "slow files"]
    forms = ["", "Fast", "config", "type"]
    single = [(kind, rng.choice(forms), (name,)) for kind in CLASSES for name in names]
    pairs = [
        (rng.choice([*CLASSES]), rng.choice(forms), tuple(rng.sample(names, 2))) for _ in range(200)
    ]
    return single + pairs


def compared(files: Files, directory: Path, case: object) -> str:
    """Compares ids and rows. Returns the class of our tokenizer, or the key of its error."""
    for old in directory.iterdir():
        old.unlink()
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    try:
        ours = load_tokenizer(directory)
    except UserError as error:
        return error.key
    theirs = AutoTokenizer.from_pretrained(directory)
    held = [piece for piece in ours.special_pieces if piece is not None]
    for text in [*TEXTS, *MORE]:
        if not any(
            piece.lower() in text.lower() for piece in held
        ):  # the five are ordinary text to us
            wanted = theirs(text, add_special_tokens=False)["input_ids"]
            assert ours.encode(text) == wanted, (case, text, theirs.convert_ids_to_tokens(wanted))
    (first, second), special = (ours.encode(text) for text in ("in", "run")), ours.special
    between = [special.sep] * ours.separators
    pair = [special.cls, *first, *between, *second, special.sep]
    assert pair == theirs("in", "run")["input_ids"], case
    assert [special.cls, *first, special.sep] == theirs("in")["input_ids"], case
    return type(ours).__name__


def test_every_file_is_read_as_its_class_reads_it_or_refused(tmp_path: Path) -> None:
    rng, by_name = random.Random(5), {**changes(), "slow files": in_slow_files}
    bases = {kind: files_of(kind, tmp_path / kind) for kind in CLASSES}
    (tmp_path / "case").mkdir()
    found: dict[Any, str] = {}
    for kind, form, names in cases():
        files = json.loads(json.dumps(bases[kind]))
        for name in names:
            by_name[name](files)
        name_class(files, form, kind, rng)
        found[kind, form, names] = compared(files, tmp_path / "case", (kind, form, names))
    counts = Counter(found.values())
    print(f"{len(found)} files:", dict(counts.most_common()))
    assert len(found) >= 600
    assert counts["WordPieceTokenizer"] >= 20
    assert counts["LibraryTokenizer"] >= 200
    read = {
        kind: {
            name
            for (each, _, names), how in found.items()
            if each == kind and how in READ
            for name in names
        }
        for kind in CLASSES
    }
    assert min(map(len, read.values())) >= 30  # each class has many files that are read
