"""Added tokens and classes in the files beside a vocabulary: as in transformers, or refused."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from bert_jax.errors import UserError
from bert_jax.interop.hf_tokenizer import write_hf_tokenizer
from bert_jax.text import load_tokenizer
from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.project import refused, refuses, says
from tests.text.library_tokenizers import gemma, lines_of_scripts, saved

LETTERS = "abcdefghijklmnopqrstuvwxyz019"
PIECES = [
    *(*SPECIAL_PIECES, "the", "drug", "for", "is", "not", "covid", "<", ">", "[", "]", "@"),
    *(*LETTERS, *(f"##{letter}" for letter in LETTERS), "[unused0]"),
]
MARKERS = ["<e1>", "[SUBJ]"]
WORDS = ["<drug>", "covid19", "@USER"]
TEXT = "the <drug>s for Covid19 [SUBJ] is <e1>not</e1> @USER [unused0] <DRUG>"
ROLES = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIAL_PIECES}


def bert(directory: Path, **settings: Any) -> Path:
    """Writes a vocab.txt and settings."""
    directory.mkdir(exist_ok=True)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def in_slow_files(directory: Path) -> None:
    """As in transformers 2 to 4.33: added_tokens.json and special_tokens_map.json."""
    bert(directory)
    numbers = {text: len(PIECES) + at for at, text in enumerate([*WORDS, *MARKERS])}
    write(directory / "added_tokens.json", numbers)
    special = {"additional_special_tokens": MARKERS, "mask_token": "[MASK]"}
    write(directory / "special_tokens_map.json", special)


def in_settings(directory: Path) -> None:
    """As in transformers 4.34 and later: added_tokens_decoder."""
    flags = {"lstrip": False, "rstrip": False, "single_word": False}
    tokens = {
        len(PIECES) + at: {"content": text, **flags, "special": special, "normalized": not special}
        for at, (text, special) in enumerate(
            [*((word, False) for word in WORDS), *((marker, True) for marker in MARKERS)]
        )
    }
    bert(directory, added_tokens_decoder=tokens, additional_special_tokens=MARKERS)


def in_names_alone(directory: Path) -> None:
    bert(directory, additional_special_tokens=[*MARKERS, "[unused0]"])


def in_both_forms(directory: Path) -> None:
    in_settings(directory)
    AutoTokenizer.from_pretrained(directory).save_pretrained(directory / "fast")
    (directory / "fast/tokenizer.json").rename(directory / "tokenizer.json")


def in_tokenizer_json(directory: Path) -> None:
    theirs = BertTokenizer.from_pretrained(bert(directory / "first"))
    theirs.add_tokens(WORDS)
    theirs.add_special_tokens({"extra_special_tokens": MARKERS})
    theirs.save_pretrained(directory)


def of_byte_level(directory: Path) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(saved("modernbert", directory / "first"))
    theirs.add_tokens(WORDS)
    theirs.add_special_tokens({"extra_special_tokens": MARKERS})
    theirs.save_pretrained(directory)


FORMS = [
    *(in_slow_files, in_settings, in_names_alone, in_both_forms, in_tokenizer_json, of_byte_level)
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_added_tokens_have_the_ids_of_transformers(
    form: Callable[[Path], None], tmp_path: Path
) -> None:
    form(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    wanted = theirs(TEXT, add_special_tokens=False)["input_ids"]
    assert {theirs.convert_tokens_to_ids(marker) for marker in MARKERS} <= {*wanted}
    assert (ours.encode(TEXT), ours.vocab_size) == (wanted, len(theirs))
    assert ours.special.mask not in ours.encode(f"{TEXT} [MASK][CLS]")
    masked = f"the {ours.special_pieces.mask} <e1>"
    assert ours.encode_masked(masked) == theirs(masked, add_special_tokens=False)["input_ids"]
    ours.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").encode(TEXT) == wanted


def test_a_long_word_is_unknown_as_in_its_own_library(tmp_path: Path) -> None:
    text = f"the {'a' * 101} {'a' * 100}"
    fast = bert(tmp_path / "fast")
    theirs = AutoTokenizer.from_pretrained(fast)(text, add_special_tokens=False)["input_ids"]
    for directory in (fast, tmp_path / "saved"):
        ours = load_tokenizer(directory)
        assert isinstance(ours, WordPieceTokenizer)
        assert ours.encode(text) == theirs
        ours.save(tmp_path / "saved")
    assert load_tokenizer(bert(tmp_path / "bare", tokenizer_class=None)).encode(text) == theirs
    released = bert(tmp_path / "google")
    (released / "tokenizer_config.json").unlink()
    google = load_tokenizer(released, lower_case=True)
    assert google.special.unk not in google.encode(text)
    assert google.hash != load_tokenizer(fast).hash


@pytest.mark.parametrize(
    "name", ["BertJapaneseTokenizer", "BertweetTokenizer", "RoFormerTokenizer"]
)
def test_a_class_with_code_of_its_own_is_refused(name: str, tmp_path: Path) -> None:
    directory = bert(tmp_path / "a", tokenizer_class=name)
    with refuses("tokenizer.class", found=f'"{name}"'):
        load_tokenizer(directory)
    directory = bert(tmp_path / "b", tokenizer_class=None)
    write(directory / "config.json", {"model_type": "bert", "tokenizer_class": name})
    with refuses("tokenizer.class", found=f'"{name}"'):
        load_tokenizer(directory)
    (directory / "tokenizer_config.json").unlink()
    refusal = refused("import", directory, tmp_path / "run", "--cased")
    says(refusal, key="tokenizer.class", found=f'"{name}"')


def test_code_beside_the_model_is_refused(tmp_path: Path) -> None:
    code = {"AutoTokenizer": ["code.Words", None]}
    directory = bert(tmp_path, tokenizer_class=None, auto_map=code)
    with refuses("tokenizer.class", place=f"{directory}: auto_map"):
        load_tokenizer(directory)
    bert(tmp_path, auto_map=code)  # transformers knows this class, and runs no code
    assert load_tokenizer(directory).encode("the") == [PIECES.index("the")]


def test_extra_tokens_of_two_files_are_read_as_in_transformers_or_refused(tmp_path: Path) -> None:
    rng, results = random.Random(0), Counter[str]()
    for case in range(120):
        files = [lists(rng, typed=typed) for typed in (True, False)]
        directory = bert(tmp_path / str(case), **files[0])
        write(directory / "special_tokens_map.json", files[1] if case % 2 else {})
        added = {text: len(PIECES) + at for at, text in enumerate(rng.sample(EXTRA, 2))}
        if case % 3 == 0:
            write(directory / "added_tokens.json", added)
        try:
            ours = load_tokenizer(directory)
        except UserError as error:
            results[error.key] += 1
            continue
        theirs = AutoTokenizer.from_pretrained(directory)
        wanted = theirs(f"{TEXT} the[SUBJ] <E1>", add_special_tokens=False)["input_ids"]
        assert ours.encode(f"{TEXT} the[SUBJ] <E1>") == wanted, files
        results["equal"] += 1
    assert {*results} == {
        "equal",
        "tokenizer.added_tokens",
        "tokenizer.added_tokens_differ",
    }
    assert results["equal"] > 40, results


EXTRA = ["<e1>", "@USER", "[SUBJ]", "not"]


def lists(rng: random.Random, *, typed: bool) -> dict[str, Any]:
    """Returns extra tokens as a file lists them: by name, as a list, as an object."""

    def token() -> Any:
        content = rng.choice(EXTRA)
        if rng.random() < 0.6:
            return content
        flags = {name: rng.random() < 0.3 for name in ("lstrip", "single_word", "normalized")}
        kind = {"__type": "AddedToken"} if typed and rng.random() < 0.8 else {}
        return {"content": content, "rstrip": False, **flags, **kind}

    def text() -> Any:
        return rng.choice(EXTRA)

    found: dict[str, Any] = {}
    if rng.random() < 0.3:
        found["image_token"] = token()
    if rng.random() < 0.4:
        found["additional_special_tokens"] = [text() for _ in range(rng.randint(1, 2))]
    elif rng.random() < 0.3:
        found["extra_special_tokens"] = rng.choice([[text()], [], {"subject_token": text()}])
    return found


def test_a_dictionary_of_fairseq_is_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("the 1000\nof 999\n")
    (tmp_path / "bpe.codes").write_text("t h 900\n")
    with refuses("tokenizer.fairseq", found="bpe.codes"):
        load_tokenizer(tmp_path)
    with refuses("tokenizer.fairseq", found="bpe.codes"):
        load_tokenizer(tmp_path, lower_case=False)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"do_basic_tokenize": False}, "false"),
        ({"never_split": ["covid19"]}, "['covid19']"),
        ({"split_special_tokens": True}, "true"),
        ({"truncation_side": "left"}, '"left"'),
        ({"fast_tokenizer_files": ["tokenizer.4.json"]}, "['tokenizer.4.json']"),
    ],
)
def test_settings_that_change_ids_are_refused(
    settings: dict[str, Any], found: str, tmp_path: Path
) -> None:
    (name,) = settings
    place = f"{tmp_path}/tokenizer_config.json: {name}"
    with refuses("tokenizer.setting", place=place, found=found):
        load_tokenizer(bert(tmp_path, **settings))


def fast(directory: Path, change: dict[str, Any], **settings: Any) -> Path:
    """Writes the tokenizer.json of BERT's class with other parts and settings."""
    spec = json.loads(BertTokenizer.from_pretrained(bert(directory)).backend_tokenizer.to_str())
    (directory / "vocab.txt").unlink()
    write(directory / "tokenizer.json", spec | change)
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **ROLES, **settings}
    write(directory / "tokenizer_config.json", config)
    return directory


def test_a_class_that_replaces_parts_of_the_file_is_refused(tmp_path: Path) -> None:
    split = {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    with refuses("tokenizer.class_differs", found='{"type": "WhitespaceSplit"}'):
        load_tokenizer(fast(tmp_path / "a", split))
    generic = load_tokenizer(
        fast(tmp_path / "b", split, tokenizer_class="PreTrainedTokenizerFast", do_lower_case=None)
    )
    assert generic.special.unk in generic.encode("is<not")
    for settings in ({"do_lower_case": False}, {"tokenize_chinese_chars": False}):
        (name,) = settings
        with refuses(
            "tokenizer.class_differs", place=f"{tmp_path / name}/tokenizer.json: normalizer"
        ):
            load_tokenizer(fast(tmp_path / name, {}, **settings))
    assert isinstance(load_tokenizer(fast(tmp_path / "c", {})), WordPieceTokenizer)
    generic_settings = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}
    with refuses("tokenizer.settings_differ", name="do_lower_case", found=True, expected=False):
        load_tokenizer(fast(tmp_path / "e", {}, **generic_settings))


@pytest.mark.parametrize("name", ["GemmaTokenizer", "GemmaTokenizerFast"])
def test_the_class_of_gemma_gives_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    gemma().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": name}
    write(path, settings)
    own, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == "GemmaTokenizer"
    for line in lines_of_scripts(200, seed=3, also=[]):
        assert own.encode(line) == theirs(line, add_special_tokens=False)["input_ids"]
    pair = theirs("a dog", "barks")["input_ids"]
    special = own.special
    expected = [special.cls, *own.encode("a dog"), special.sep, *own.encode("barks"), special.sep]
    assert (pair, own.separators) == (expected, 1)
    write(path, settings | {"add_eos_token": True})  # then the class writes the rows
    with refuses("tokenizer.rows", found="add_eos_token"):
        load_tokenizer(tmp_path)


def test_the_type_of_the_model_names_the_class(tmp_path: Path) -> None:
    split = {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    directory = fast(tmp_path, split, tokenizer_class=None)
    assert load_tokenizer(directory).encode("is<not")
    write(directory / "config.json", {"model_type": "electra"})
    with refuses("tokenizer.class_differs", tokenizer_class="BertTokenizer"):
        load_tokenizer(directory)
    write(directory / "config.json", {"model_type": "mpnet"})
    with refuses("tokenizer.class", found='"MPNetTokenizer"'):
        load_tokenizer(directory)


def test_a_final_sigma_is_read_as_its_own_library_reads_it(tmp_path: Path) -> None:
    pieces = [*SPECIAL_PIECES, "ο", "##δ", "##ο", "##ς", "##σ"]
    own = {}
    for name in ("class", "google"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
        if name == "class":
            settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
            write(directory / "tokenizer_config.json", settings)
        own[name] = load_tokenizer(directory, lower_case=True)
        own[name].save(tmp_path / "saved")
        assert load_tokenizer(tmp_path / "saved").hash == own[name].hash
    theirs = AutoTokenizer.from_pretrained(tmp_path / "class")
    wanted = theirs("ΟΔΟΣ ΟΔΟΣ.", add_special_tokens=False)["input_ids"]
    assert own["class"].encode("ΟΔΟΣ ΟΔΟΣ.") == wanted
    assert own["google"].pieces(own["google"].encode("ΟΔΟΣ")) == ["ο", "##δ", "##ο", "##ς"]


def test_rows_without_special_pieces_are_refused(tmp_path: Path) -> None:
    generic = "PreTrainedTokenizerFast"
    with refuses("tokenizer.rows", found="null"):
        load_tokenizer(fast(tmp_path / "a", {"post_processor": None}, tokenizer_class=generic))
    for sep in (["[SEP]", 9], ["the", 5]):
        rows = {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": sep}
        with refuses("tokenizer.template_ids", found=f"[('[CLS]', 2), {(*sep,)}]"):
            load_tokenizer(fast(tmp_path / sep[0], {"post_processor": rows}))
    truncation = {"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    with refuses("tokenizer.truncation"):
        load_tokenizer(fast(tmp_path / "b", {"truncation": truncation}))


def test_an_export_that_transformers_saved_again_is_read(tmp_path: Path) -> None:
    own = load_tokenizer(bert(tmp_path / "bert"))
    first, again = tmp_path / "export", tmp_path / "again"
    first.mkdir()
    write_hf_tokenizer(first, own, max_length=48, token_types=True)
    theirs = AutoTokenizer.from_pretrained(first)
    theirs.save_pretrained(again)
    assert load_tokenizer(again).hash == own.hash
    theirs.add_tokens(["<drug>"])
    theirs.save_pretrained(again)
    assert len(PIECES) in load_tokenizer(again).encode("the <drug>")


def test_an_added_token_with_another_id_is_refused(tmp_path: Path) -> None:
    token = {"content": "the", "special": True}
    with refuses("tokenizer.added_tokens", found='"the"', id=len(PIECES), expected=5):
        load_tokenizer(bert(tmp_path, added_tokens_decoder={len(PIECES): token}))
    with refuses("tokenizer.added_token", found="3"):
        load_tokenizer(bert(tmp_path, additional_special_tokens=[3]))


def test_a_byte_order_mark_is_no_part_of_a_vocabulary(tmp_path: Path) -> None:
    plain = load_tokenizer(bert(tmp_path))
    for name in ("vocab.txt", "tokenizer_config.json"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content)
    assert load_tokenizer(tmp_path).hash == plain.hash
