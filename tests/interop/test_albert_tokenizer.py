"""The SentencePiece model of google-research/albert, compared with its code and the library."""

import json
import shutil
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import transformers

import bert_jax
from bert_jax.interop.sentencepiece_file import read_albert_model
from bert_jax.pipelines.python_docs import write_python_docs
from bert_jax.text import load_tokenizer
from tests.interop.hf_checkpoints import hf_model, small_config
from tests.project import ok, refused, refuses, says

PIECES = 700
TEXTS = (
    "In 1990, 13930, and 1995. (It's 5,000 £ or 10,,) ",
    "Café  naïve Ｆｕｌｌ ﬁnal — “quoted” [MASK] <pad> [SEP]",
    "ÅNGSTRÖM ½ 東京 ẛ̣ tab\there",
    "",
    "unrelatedwordswithoutspaces,1999,x,",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("docs")
    write_python_docs(directory)
    files = sorted(directory.glob("*.txt"))
    lines = "\n".join(file.read_text(encoding="utf-8") for file in files).splitlines()
    return [line.strip() for line in lines if line.strip()][:4000]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, text: list[str]) -> Path:
    """A model that is trained with the options of google-research/albert's README."""
    directory = tmp_path_factory.mktemp("model")
    numbers = [f"in {year}, {year * 7}, and {year}." for year in range(1900, 1990)]
    (directory / "text").write_text("\n".join(text[:2000] + numbers).lower(), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.Train(
        f"--input={directory}/text --model_prefix={directory}/30k-clean --vocab_size={PIECES} "
        "--pad_id=0 --unk_id=1 --eos_id=-1 --bos_id=-1 --control_symbols=[CLS],[SEP],[MASK] "
        '--user_defined_symbols=(,),",-,.,–,£,€ --model_type=unigram --minloglevel=2'
    )
    return directory / "30k-clean.model"


def googles_ids(model: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """Transcription of `preprocess_text` and `encode_pieces` of google-research/albert."""
    text = unicodedata.normalize("NFKD", " ".join(text.split()))
    text = "".join(char for char in text if not unicodedata.combining(char)).lower()
    pieces: list[str] = []
    for piece in model.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = model.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and parts[0][0] == "▁":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            pieces += [*parts, piece[-1]]
        else:
            pieces.append(piece)
    return [model.piece_to_id(piece) for piece in pieces]


def test_ids_equal_googles(model: Path, text: list[str]) -> None:
    ours = read_albert_model(model, lower_case=True)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    lines = [*TEXTS, *text[2000:]]
    different = [line for line in lines if ours.encode(line) != googles_ids(theirs, line)]
    assert different == []
    assert (ours.special, ours.vocab_size) == ((0, 1, 2, 3, 4), PIECES)


def published(directory: Path, model: Path) -> Path:
    """Writes the files of ALBERT on the Hub, without a casing in tokenizer_config.json."""
    config = small_config("AlbertForMaskedLM", vocab_size=PIECES)
    hf_model(transformers.AlbertForMaskedLM, config).save_pretrained(directory)
    parsed = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [(parsed.id_to_piece(at), parsed.get_score(at)) for at in range(PIECES)]
    tokenizer = transformers.AlbertTokenizer(vocab=pieces)
    tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"))
    shutil.copy(model, directory / "spiece.model")
    (directory / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    return directory


def test_a_published_albert_is_read_as_in_transformers(
    tmp_path: Path, model: Path, text: list[str]
) -> None:
    source = published(tmp_path / "albert", model)
    ok("import", source, tmp_path / "run")
    ours, theirs = (
        bert_jax.load(tmp_path / "run").tokenizer,
        transformers.AlbertTokenizer.from_pretrained(source),
    )
    lines = [*(line for line in TEXTS if "[MASK]" not in line), "``two'' quotes", *text[2000:2500]]
    expected = theirs(lines, add_special_tokens=False).input_ids
    assert [list(ours.encode(line)) for line in lines] == expected
    line = refused("import", source, tmp_path / "again", "--uncased")
    says(line, key="import.casing_known", name="tokenizer.json")
    ok("export", tmp_path / "run", tmp_path / "back")
    assert load_tokenizer(tmp_path / "back").hash == ours.hash


@pytest.mark.parametrize("casing", [{}, {"do_lower_case": True}])
def test_a_model_without_tokenizer_json_needs_a_choice(
    casing: dict[str, bool], tmp_path: Path, model: Path
) -> None:
    source = published(tmp_path / "albert", model)
    (source / "tokenizer.json").unlink()
    (source / "tokenizer_config.json").write_text(json.dumps(casing))
    line = refused("import", source, tmp_path / "run")
    assert line.key == "tokenizer.foreign_model"
    says(line, place=str(source / "spiece.model"))
    ok("import", source, tmp_path / "run", "--uncased")
    found = bert_jax.load(tmp_path / "run").tokenizer
    assert found.hash == read_albert_model(model, lower_case=True).hash


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with refuses("tokenizer.not_unigram", place=tmp_path / "x.model"):
        read_albert_model(tmp_path / "x.model", lower_case=True)
