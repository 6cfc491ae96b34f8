"""Tokenizers of the tokenizers library: RoBERTa, ModernBERT, XLM-R, CamemBERT."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bert_jax.narration import speaking
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.library_tokenizer import LibraryTokenizer
from bert_jax.text.word_starts import continuations
from tests.project import refuses
from tests.text.library_tokenizers import (
    KINDS,
    MODERNBERT_TEXTS,
    SPECIAL_TEXTS,
    lines_of_scripts,
    llama,
    saved,
)

TEXT = 'The "quick" fox (jumps), élan 世界 über don\'t   two\n[unused1] ok'


@pytest.fixture(scope="module", params=[*KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def directory(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def own(directory: Path) -> LibraryTokenizer:
    found = load_tokenizer(directory)
    assert isinstance(found, LibraryTokenizer)
    return found


def test_ids_equal_the_librarys_in_many_scripts(kind: str, own: LibraryTokenizer) -> None:
    lines = lines_of_scripts(400, seed=5, also=MODERNBERT_TEXTS)
    theirs = KINDS[kind]()._tokenizer.encode_batch(lines, add_special_tokens=False)
    assert own.encode_batch(lines) == [found.ids for found in theirs]
    assert [own.encode(line) for line in lines[:50]] == [found.ids for found in theirs[:50]]
    if kind == "modernbert":  # added tokens that are not special keep their meaning
        (ip, unused), run = (
            own.pieces(own.encode(t)) for t in ("|||IP_ADDRESS|||[unused1]", "   ")
        )
        assert [ip, unused, *run] == ["|||IP_ADDRESS|||", "[unused1]", "   "]


def test_special_pieces_in_the_text_are_ordinary_text(own: LibraryTokenizer) -> None:
    special = {own.special.pad, own.special.cls, own.special.sep, own.special.mask}
    for ids in own.encode_batch(
        [*SPECIAL_TEXTS, *lines_of_scripts(100, seed=6, also=SPECIAL_TEXTS)]
    ):
        assert special.isdisjoint(ids)


def test_special_pieces_and_separators_come_from_the_files(kind: str, own: Tokenizer) -> None:
    theirs = KINDS[kind]()
    names = ("pad", "unk", "cls", "sep", "mask")
    assert own.special._asdict() == {name: getattr(theirs, f"{name}_token_id") for name in names}
    assert own.special_pieces._asdict() == {
        name: getattr(theirs, f"{name}_token") for name in names
    }
    assert own.separators == (1 if kind in ("modernbert", "gemma") else 2)
    assert own.vocab_size == len(theirs)


def test_a_saved_tokenizer_opens_unchanged_also_in_hugging_face(
    own: LibraryTokenizer, tmp_path: Path
) -> None:
    own.save(tmp_path)
    for same in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(own))):
        assert same.hash == own.hash
        assert same.encode(TEXT) == own.encode(TEXT)
        assert same.separators == own.separators
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["hash"] = "0" * 64
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with refuses("tokenizer.hash"):
        load_tokenizer(tmp_path)


def test_decoding_returns_the_text_and_shows_special_pieces(own: LibraryTokenizer) -> None:
    special, ids = own.special, own.encode("dog barks , twice")
    text = own.decode([special.cls, *ids, special.sep, special.pad, special.pad])
    assert text.startswith(own.special_pieces.cls)
    assert text.rstrip().endswith(own.special_pieces.sep)
    assert "dog barks , twice" in text
    assert own.encode("half \ud83d surrogate") == own.encode("half \ufffd surrogate")
    with refuses("tokenizer.token_id", found=own.vocab_size):
        own.decode([own.vocab_size])


def test_offsets_cover_the_text_without_spaces(own: LibraryTokenizer) -> None:
    text = "a dog, über  alles"
    ids, offsets = own.encode_offsets(text)
    assert ids == own.encode(text)
    covered = {at for start, end in offsets for at in range(start, end)}
    assert covered == {at for at, character in enumerate(text) if not character.isspace()}


def words(own: Tokenizer, text: str) -> list[str]:
    ids = np.asarray(own.encode(text))
    starts = ~continuations(ids, own.is_continuation, own.ends_word)
    starts[0] = True  # the masker knows that the first piece begins a word
    found = np.split(ids, np.flatnonzero(starts)[1:])
    return [own.decode(word.tolist()).strip() for word in found]


def test_words_begin_at_spaces_and_punctuation(own: LibraryTokenizer) -> None:
    found = words(own, 'unexpressionable (dogs), naïveté "covid" is!')
    wanted = {"unexpressionable", "dogs", "naïveté", "covid", "is"}
    assert {word for word in found if any(map(str.isalnum, word))} == wanted
    assert {"(", '"'} <= {*found}


def test_words_of_other_scripts(own: LibraryTokenizer, kind: str) -> None:
    assert words(own, "a 一丁丂 b")[-4:] == ["一", "丁", "丂", "b"]
    if kind in ("roberta", "modernbert"):  # every text is known; letters are divided into bytes
        assert words(own, "über हिन्दी Привет") == ["über", "हिन्दी", "Привет"]
        assert words(own, "don't") == ["don", "'t"]
        assert words(own, "covid19 3.14th") == ["covid19", "3", ".", "14th"]


def test_parts_of_a_text_keep_the_spaces_between_them(own: LibraryTokenizer) -> None:
    sentences = ["A dog barks.", "The cat sleeps.", ""]
    (*first, empty), (dog,) = own.encode_parts([sentences, ["dog"]])
    assert [*first[0], *first[1]] == own.encode(" ".join(sentences[:2]))
    assert (empty, dog) == ([], own.encode("dog"))


def test_masks_take_the_space_before_them_as_in_hugging_face(kind: str, own: Tokenizer) -> None:
    text = f"the {own.special_pieces.mask} sat . {own.special_pieces.mask}"
    theirs = KINDS[kind]()
    assert own.encode_masked(text) == theirs(text, add_special_tokens=False)["input_ids"]
    with refuses("fill_mask.no_mask", allowed=[own.special_pieces.mask]):
        own.encode_masked("the cat sat")


def test_roberta_without_tokenizer_json_has_the_same_ids(tmp_path: Path) -> None:
    full = load_tokenizer(saved("roberta", tmp_path / "full"))
    assert isinstance(full, LibraryTokenizer)
    old = tmp_path / "old"
    old.mkdir()
    model = full.spec["model"]
    (old / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (old / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    read = load_tokenizer(old)
    assert (read.special, read.separators) == (full.special, 2)
    lines = lines_of_scripts(50, seed=7, also=[])
    assert read.encode_batch(lines) == full.encode_batch(lines)
    mask = {"content": "<mask>", "lstrip": True}
    (old / "special_tokens_map.json").write_text(json.dumps({"mask_token": mask}))
    assert load_tokenizer(old).encode_masked("a <mask>") == [*read.encode("a"), read.special.mask]
    (old / "merges.txt").write_text("a b c\n")
    with refuses("tokenizer.merge", found="a b c"):
        load_tokenizer(old)


def edited(directory: Path, target: Path, change: dict[str, Any], **settings: Any) -> Path:
    """Returns a copy of a tokenizer directory with other content."""
    target.mkdir()
    spec = json.loads((directory / "tokenizer.json").read_text())
    (target / "tokenizer.json").write_text(json.dumps(spec | change))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps(config | settings))
    return target


def test_roles_may_be_objects_in_either_file(
    directory: Path, own: Tokenizer, tmp_path: Path
) -> None:
    mask = {"content": own.special_pieces.mask, "lstrip": True}
    other = edited(directory, tmp_path / "a", {}, mask_token=None, cls_token=None, bos_token=None)
    special = {"mask_token": mask, "bos_token": own.special_pieces.cls}
    (other / "special_tokens_map.json").write_text(json.dumps(special))
    assert load_tokenizer(other).special == own.special
    bare = edited(directory, tmp_path / "b", {})
    (bare / "tokenizer_config.json").unlink()
    assert load_tokenizer(bare).special == own.special


def test_a_tokenizer_of_llama_may_pad_with_its_separator(tmp_path: Path) -> None:
    """EuroBERT's does. It has no piece for unknown text."""
    theirs = llama()
    theirs.save_pretrained(tmp_path / "llama")
    own = load_tokenizer(tmp_path / "llama")
    lines = lines_of_scripts(300, seed=7, also=["<|mask|>", "1234567"])
    found = theirs._tokenizer.encode_batch(lines, add_special_tokens=False)
    without_mask = [at for at, each in enumerate(found) if theirs.mask_token_id not in each.ids]
    assert 100 < len(without_mask) < 300
    ours = own.encode_batch(lines)
    assert [ours[at] for at in without_mask] == [found[at].ids for at in without_mask]
    special = own.special
    assert special.pad == special.sep == theirs.sep_token_id
    row = theirs("a dog", "1234567")["input_ids"]
    pair = [special.cls, *own.encode("a dog"), special.sep, *own.encode("1234567"), special.sep]
    assert row == pair
    # Llama's own rows have no last piece.
    post = json.loads((tmp_path / "llama" / "tokenizer.json").read_text())["post_processor"]
    post["processors"][1]["single"].pop()
    short = edited(tmp_path / "llama", tmp_path / "short", {"post_processor": post})
    with refuses("tokenizer.template", allowed="<|begin_of_text|> A <|end_of_text|>"):
        load_tokenizer(short)


def test_other_pipelines_are_refused(tmp_path: Path) -> None:
    directory = saved("roberta", tmp_path / "roberta")
    number = iter(range(10))

    def opened(change: dict[str, Any], **settings: Any) -> Tokenizer:
        return load_tokenizer(edited(directory, tmp_path / str(next(number)), change, **settings))

    with refuses("tokenizer.model_type", found='"WordLevel"'):
        opened({"model": {"type": "WordLevel", "vocab": {}}})
    with refuses("tokenizer.pre_tokenizer", found=["Whitespace"]):
        opened({"pre_tokenizer": {"type": "Whitespace"}})
    with refuses("tokenizer.role_missing", missing=["mask"]):
        opened({}, mask_token="<blank>")
    with refuses("tokenizer.role_type", found="3"):
        opened({}, mask_token=3)
    with refuses("tokenizer.unreadable"):
        opened({"normalizer": {"type": "Unheard"}})
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]}
    with refuses("tokenizer.template", found="A"):
        opened({"post_processor": template | {"pair": template["single"], "special_tokens": {}}})
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 9}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    with refuses("tokenizer.ids"):
        opened({"model": model, "added_tokens": []})
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "sentencepiece.bpe.model").write_bytes(b"x")
    with refuses("tokenizer.slow_only", found="sentencepiece.bpe.model"):
        load_tokenizer(foreign)


def test_a_model_without_an_unknown_piece_reads_the_mask_instead(tmp_path: Path) -> None:
    directory = saved("roberta", tmp_path / "roberta")
    spec = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = {
        piece.replace("<unk>", "<none>"): at for piece, at in spec["model"]["vocab"].items()
    }
    added = [token for token in spec["added_tokens"] if token["content"] != "<unk>"]
    change = {"model": spec["model"] | {"vocab": vocabulary}, "added_tokens": added}
    found = load_tokenizer(edited(directory, tmp_path / "other", change, unk_token=None))
    assert found.special.unk == found.special.mask
    found.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").hash == found.hash


def test_dropout_of_bpe_is_off_and_said_once(tmp_path: Path) -> None:
    directory = saved("roberta", tmp_path / "roberta")
    spec = json.loads((directory / "tokenizer.json").read_text())
    change = {"model": spec["model"] | {"dropout": 0.3}}
    other = edited(directory, tmp_path / "dropout", change)
    output = io.StringIO()
    with speaking(Console(file=output, width=300)):
        found = load_tokenizer(other)
    (line,) = output.getvalue().splitlines()
    assert "tokenizer.json: BPE dropout (0.3) is off" in line
    assert found.hash == load_tokenizer(directory).hash
    assert {tuple(found.encode(TEXT)) for _ in range(20)} == {tuple(found.encode(TEXT))}
