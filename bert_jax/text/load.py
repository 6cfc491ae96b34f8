"""Opens tokenizer directories of WordPiece, SentencePiece and the tokenizers library."""

from typing import Any

from etils import epath

from bert_jax.errors import UserError, did_you_mean, differing
from bert_jax.files.read import read_bytes, read_json_object, shown
from bert_jax.text.library_tokenizer import PIPELINE_FILE, LibraryTokenizer, read_pipeline
from bert_jax.text.roberta_files import MERGES_FILE, read_roberta_files
from bert_jax.text.sentence_piece import MODEL_FILE, SentencePieceTokenizer
from bert_jax.text.tokenizer import CONFIG_FILE, Tokenizer
from bert_jax.text.vocabulary import PAD
from bert_jax.text.wordpiece import VOCAB_FILE, load_wordpiece

MAX_BYTES = 128 << 20  # of tokenizer.json; the file of a vocabulary of 500,000 pieces has 35 MB
_FLAGS = {"strip_accents": None, "tokenize_chinese_chars": True}  # defaults of optional settings
_FILE_OF_TYPE = {
    "wordpiece": VOCAB_FILE,
    "sentencepiece": MODEL_FILE,
    "tokenizers": PIPELINE_FILE,
}
SPECIAL_FILE = "special_tokens_map.json"
# Vocabularies of XLM-R, CamemBERT, T5 and others. Their tokenizers change the ids of the model.
_FOREIGN = ("sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model")


def load_tokenizer(directory: epath.PathLike) -> Tokenizer:
    """Opens a directory of ``Tokenizer.save``, or of a Hugging Face tokenizer.

    The directory, local or ``gs://``, has ``vocab.txt`` or ``spiece.model``, and a
    ``tokenizer_config.json`` with ``do_lower_case``. Or it has ``tokenizer.json`` with a BPE or
    unigram model, or RoBERTa's ``vocab.json`` and ``merges.txt``. Raises UserError if a file, a
    setting or a special piece is missing, a file is damaged, a setting has a wrong type, a piece
    occurs twice, or the hash in the settings differs from the tokenizer's hash.
    """
    root = epath.Path(directory)
    if not root.is_dir():
        raise UserError(
            "tokenizer.missing",
            "no such directory. Make a tokenizer with `bert-jax vocab`.",
            place=root,
        )
    path = root / CONFIG_FILE
    has_pipeline = any((root / name).exists() for name in (PIPELINE_FILE, MERGES_FILE))
    if not any((root / name).exists() for name in (*_FILE_OF_TYPE.values(), MERGES_FILE)):
        _refuse_foreign(root)
    if not path.exists() and not has_pipeline:
        raise _no_settings(root)
    config = read_json_object(path) if path.exists() else {}
    kind = _kind(config, root)
    if kind == "sentencepiece" and "type" not in config:
        _refuse_foreign_model(root / MODEL_FILE)
    tokenizer: Tokenizer
    if kind == "tokenizers":
        tokenizer = _load_pipeline(root, config)
    else:
        tokenizer = _load_own(root, config, kind)
    recorded = config.get("hash", tokenizer.hash)
    if recorded != tokenizer.hash:
        found, wanted = differing(str(recorded), tokenizer.hash)
        raise UserError(
            "tokenizer.hash",
            "found {found}, but the hash of {vocabulary} and the settings is {expected}. One of "
            "the two files was changed.",
            place=f"{path}: hash",
            found=found,
            vocabulary=_FILE_OF_TYPE[kind],
            expected=wanted,
        )
    return tokenizer


def _load_pipeline(root: epath.Path, config: dict[str, Any]) -> LibraryTokenizer:
    """Opens ``tokenizer.json``, or RoBERTa's two files."""
    special = root / SPECIAL_FILE
    settings = (read_json_object(special) if special.exists() else {}) | config
    path = root / PIPELINE_FILE
    if not path.exists():
        return read_pipeline(read_roberta_files(root, settings), settings, source=str(root))
    return read_pipeline(read_json_object(path, limit=MAX_BYTES), settings, source=str(path))


def _load_own(root: epath.Path, config: dict[str, Any], kind: str) -> Tokenizer:
    """Opens ``vocab.txt`` or ``spiece.model``."""
    path = root / CONFIG_FILE
    if "do_lower_case" not in config:
        raise _wrong(path, "do_lower_case", "nothing", "true, false")
    for key, default in (("do_lower_case", None), *_FLAGS.items()):
        value = config.setdefault(key, default)
        if value is not None and not isinstance(value, bool):
            raise _wrong(path, key, shown(value), "true, false, null")
    if (lower_case := config["do_lower_case"]) is None:
        raise _wrong(path, "do_lower_case", "null", "true, false")
    file, strip_accents = root / _FILE_OF_TYPE[kind], config["strip_accents"]
    if kind == "wordpiece":
        chinese = config["tokenize_chinese_chars"] is not False
        return load_wordpiece(
            file, lower_case=lower_case, strip_accents=strip_accents, chinese=chinese
        )
    return SentencePieceTokenizer(
        read_bytes(file), lower_case=lower_case, strip_accents=strip_accents, source=str(file)
    )


def _no_settings(root: epath.Path) -> UserError:
    """Returns the error for a directory without settings, and without a ``tokenizer.json``."""
    if (root / VOCAB_FILE).exists():
        return UserError(
            "tokenizer.casing_unknown",
            "found vocab.txt without tokenizer_config.json, so its casing is unknown. Add "
            'tokenizer_config.json with {{"do_lower_case": true}} for an uncased vocabulary, or '
            "with false.",
            place=root,
        )
    return UserError(
        "tokenizer.no_settings",
        "found no tokenizer_config.json, allowed: a tokenizer directory",
        place=root,
    )


def _refuse_foreign(root: epath.Path) -> None:
    """Raises UserError for a SentencePiece model whose ids are not the model's."""
    for name in _FOREIGN:
        if (root / name).exists():
            raise UserError(
                "tokenizer.slow_only",
                "found {found} without tokenizer.json. Write tokenizer.json in Python: "
                "transformers.AutoTokenizer.from_pretrained(directory).save_pretrained(directory)",
                place=root,
                found=name,
            )


def _refuse_foreign_model(path: epath.Path) -> None:
    """Raises UserError for a SentencePiece model with the special pieces of ALBERT or T5."""
    content = read_bytes(path)  # pieces are plain text in it
    if PAD.encode() not in content and b"<pad>" in content:
        raise UserError(
            "tokenizer.foreign_model",
            "found <pad> instead of [PAD], and no tokenizer.json beside it. Write tokenizer.json "
            "in Python: transformers.AutoTokenizer.from_pretrained(directory)."
            "save_pretrained(directory). Or, for ALBERT, use --uncased or --cased to read it as "
            "google-research/albert does.",
            place=path,
        )


def _wrong(path: epath.Path, key: str, found: str, allowed: object, hint: str = "") -> UserError:
    return UserError(
        "tokenizer.setting",
        "found {found}, allowed: {allowed}{hint}",
        place=f"{path}: {key}",
        found=found,
        allowed=allowed,
        hint=hint,
    )


def _kind(config: dict[str, Any], root: epath.Path) -> str:
    """Returns ``type`` of the settings. Without it, returns the type of the vocabulary file."""
    if "type" in config:
        kind = str(config["type"])
        if kind not in _FILE_OF_TYPE:
            hint = did_you_mean(kind, _FILE_OF_TYPE)
            raise _wrong(root / CONFIG_FILE, "type", f'"{kind:.60}"', [*_FILE_OF_TYPE], hint)
        return kind
    found = [kind for kind, name in _FILE_OF_TYPE.items() if (root / name).exists()]
    if found == ["sentencepiece", "tokenizers"]:  # ALBERT's files: transformers reads the second
        return "tokenizers"
    if found:
        return found[0]
    if (root / MERGES_FILE).exists():
        return "tokenizers"
    raise UserError(
        "tokenizer.no_vocabulary",
        "found no {allowed:or}, allowed: one of them",
        place=root,
        allowed=list(_FILE_OF_TYPE.values()),
    )
