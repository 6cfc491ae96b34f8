"""Opens tokenizer directories of WordPiece, SentencePiece and the tokenizers library."""

from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError, did_you_mean, differing, one_of
from bert_jax.files.read import read_bytes, read_json_object, shown
from bert_jax.text import library_settings, pipeline_file
from bert_jax.text.added_tokens import ADDED_FILE, with_added_tokens
from bert_jax.text.bert_files import LIBRARY_WORD_CHARACTERS, bert_parts, own_wordpiece
from bert_jax.text.class_pipelines import FAMILIES, as_class, with_defaults
from bert_jax.text.library_tokenizer import PIPELINE_FILE, LibraryTokenizer
from bert_jax.text.pipeline_file import Roles, Spec
from bert_jax.text.roberta_files import MERGES_FILE, read_roberta_files
from bert_jax.text.sentence_piece import MODEL_FILE, SentencePieceTokenizer
from bert_jax.text.special_rows import (
    ROLE_SETTINGS,
    content_of,
    find_roles,
    find_separators,
    rows_of,
)
from bert_jax.text.spm_file import SPM_FILE, read_spm_file
from bert_jax.text.tokenizer import CONFIG_FILE, Tokenizer
from bert_jax.text.vocabulary import PAD, find_special, read_vocabulary
from bert_jax.text.wordpiece import MAX_WORD_CHARACTERS, VOCAB_FILE

# Keys that transformers adds when it saves an export again. It keeps the hash of the old files, but
# its own classes decide how the new ones are read.
_SAVED_AGAIN: Final = frozenset(("backend", "is_local", "added_tokens_decoder"))
MAX_BYTES = 128 << 20  # of tokenizer.json; the file of a vocabulary of 500,000 pieces has 35 MB
_FLAGS = ("strip_accents", "tokenize_chinese_chars")
_FILE_OF_TYPE = {
    "wordpiece": VOCAB_FILE,
    "sentencepiece": MODEL_FILE,
    "tokenizers": PIPELINE_FILE,
}
# A pipeline, and files from which Hugging Face makes one.
_PIPELINES: Final = (PIPELINE_FILE, MERGES_FILE, SPM_FILE)
_FAIRSEQ_FILE = "bpe.codes"
# Vocabularies of XLM-R, CamemBERT, T5 and others. Their tokenizers change the ids of the model.
_FOREIGN = ("sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model")


def load_tokenizer(directory: epath.PathLike, *, lower_case: bool | None = None) -> Tokenizer:
    """Opens a directory of ``Tokenizer.save``, or of a Hugging Face tokenizer.

    The directory, local or ``gs://``, has ``vocab.txt`` or ``spiece.model``, and a
    ``tokenizer_config.json`` with ``do_lower_case``. Or it has ``tokenizer.json``, RoBERTa's
    ``vocab.json`` and ``merges.txt``, or DeBERTa's ``spm.model``. A ``tokenizer.json`` determines
    the ids. Our own WordPiece runs a pipeline only if it implements each of its parts; the
    tokenizers library runs the others.

    Args:
        directory: the directory.
        lower_case: replaces ``do_lower_case`` in the settings.

    Raises:
        UserError: a file, a setting or a special piece is missing, a file is damaged, a setting has
            a wrong type, a piece occurs twice, two files differ, the hash in the settings differs
            from the tokenizer's hash, or Hugging Face runs code that no file describes.
    """
    root = epath.Path(directory)
    if not root.is_dir():
        found = "found a file, allowed: a" if root.exists() else "no such"
        raise UserError(
            "tokenizer.missing",
            f"{found} directory. Make a tokenizer with `bert-jax vocab`.",
            place=root,
        )
    path = root / CONFIG_FILE
    has_pipeline = any((root / name).exists() for name in _PIPELINES)
    if not any((root / name).exists() for name in (*_FILE_OF_TYPE.values(), *_PIPELINES)):
        _refuse_foreign(root)
    if not has_pipeline:
        _refuse_fairseq(root)
    settings = library_settings.read_settings(root)
    library_settings.check_settings(settings, root, pipeline=has_pipeline)
    if lower_case is not None:
        settings["do_lower_case"] = lower_case
    elif not path.exists() and not has_pipeline:
        raise _no_settings(root)
    kind = _kind(settings, root)
    if kind == "sentencepiece" and "type" not in settings:
        _refuse_foreign_model(root / MODEL_FILE)
    open_kind = {
        "tokenizers": _load_pipeline,
        "wordpiece": _load_wordpiece,
        "sentencepiece": _load_sentencepiece,
    }[kind]
    tokenizer = open_kind(root, settings)
    recorded = settings.get("hash", tokenizer.hash)
    if recorded != tokenizer.hash and not _SAVED_AGAIN & settings.keys():
        found, wanted = differing(str(recorded), tokenizer.hash)
        raise UserError(
            "tokenizer.hash",
            f"found {found}, but {_FILE_OF_TYPE[kind]} has {wanted}. If you edited it, drop hash.",
            place=f"{path}: hash",
        )
    return tokenizer


def _load_pipeline(root: epath.Path, settings: dict[str, Any]) -> Tokenizer:
    """Opens ``tokenizer.json``, RoBERTa's two files, or DeBERTa's ``spm.model``."""
    path = root / PIPELINE_FILE
    if not path.exists() and (root / SPM_FILE).exists():
        spec = pipeline_file.check_spec(read_spm_file(root / SPM_FILE, settings), str(root))
        return _choose(spec, settings, root, source=str(root))
    if not path.exists():
        spec = pipeline_file.check_spec(read_roberta_files(root, settings), str(root))
        return _choose(spec, settings, root, source=str(root))
    found = read_json_object(path, limit=MAX_BYTES)
    if pipeline_file.model_of(found, str(path))["type"] == "WordPiece":
        found = pipeline_file.complete(found, str(path))
    spec = pipeline_file.check_spec(found, str(path))
    # The library checks the types of all parts; `complete` has opened a WordPiece model.
    if spec["model"]["type"] != "WordPiece" and "type" not in settings:
        pipeline_file.open_pipeline(spec, str(path))
    pipeline_file.marks_of(spec, str(path))  # no setting helps against a foreign pre-tokenizer
    library_settings.check_flags(settings, spec, str(path))
    if spec["model"]["type"] == "WordPiece":
        _check_beside(root / VOCAB_FILE, spec, path)
    return _choose(spec, settings, root, source=str(path))


def _check_beside(vocabulary: epath.Path, spec: Spec, path: epath.Path) -> None:
    """Raises UserError if ``vocab.txt`` is there and differs from ``tokenizer.json``."""
    if not vocabulary.exists():
        return
    pieces = {piece: number for number, piece in enumerate(read_vocabulary(vocabulary))}
    if pieces != spec["model"]["vocab"]:
        raise UserError(
            "tokenizer.vocabularies_differ",
            "its vocabulary differs from vocab.txt in the same directory",
            place=path,
        )


def _load_wordpiece(root: epath.Path, settings: dict[str, Any]) -> Tokenizer:
    """Opens ``vocab.txt``, with Hugging Face's rules if it has a ``tokenizer_config.json``."""
    path, file = root / CONFIG_FILE, root / VOCAB_FILE
    if path.exists() and "type" not in settings and settings.get("tokenizer_class") is None:
        settings = settings | {"tokenizer_class": "BertTokenizer"}
    strip_accents, chinese = (_flag(settings, path, name) for name in _FLAGS)
    longest = settings.get("max_word_characters", MAX_WORD_CHARACTERS)
    if not isinstance(longest, int) or longest < 1:
        raise _wrong(path, "max_word_characters", shown(longest), "1 or more")
    if library_settings.stem_of(settings) in FAMILIES:
        longest = LIBRARY_WORD_CHARACTERS
    named = with_defaults(settings, "Bert")
    roles = [content_of(named[name], f"{path}: {name}") or "" for name in ROLE_SETTINGS]
    lower_case, pieces = _lower_case(settings, path), read_vocabulary(file)
    find_special(pieces, str(file), pieces=roles)
    ids = {piece: number for number, piece in enumerate(pieces)}
    content = bert_parts(
        ids,
        lower_case=lower_case,
        strip_accents=strip_accents,
        chinese=chinese is not False,
        longest=longest,
        unknown=roles[1],
    )
    content["post_processor"] = rows_of(Roles(*roles), ids, separators=1)
    return _choose(pipeline_file.check_spec(content, str(file)), settings, root, source=str(file))


def _load_sentencepiece(root: epath.Path, settings: dict[str, Any]) -> Tokenizer:
    """Opens ``spiece.model``."""
    path, file = root / CONFIG_FILE, root / MODEL_FILE
    return SentencePieceTokenizer(
        read_bytes(file),
        lower_case=_lower_case(settings, path),
        strip_accents=_flag(settings, path, "strip_accents"),
        source=str(file),
    )


def _choose(spec: Spec, settings: dict[str, Any], root: epath.Path, *, source: str) -> Tokenizer:
    """Returns our own WordPiece if it runs the whole pipeline, otherwise the library's."""
    stem, added = library_settings.stem_of(settings), root / ADDED_FILE
    settings = with_defaults(settings, stem)
    numbers = read_json_object(added) if added.exists() else {}
    spec = with_added_tokens(spec, settings, numbers, source=source)
    roles = find_roles(settings, spec, source)
    library_settings.check_rows(settings, spec, source)
    separators = find_separators(settings, spec, roles, source)
    spec = as_class(stem, settings, spec, roles, separators, source=source)
    if spec["model"]["type"] == "WordPiece":
        # google-research/bert follows Python's rule, and the library another one.
        ours = "type" in settings or (stem is None and not (root / PIPELINE_FILE).exists())
        final = ours and settings.get("final_sigma") is not False
        own = own_wordpiece(spec, roles, separators, final_sigma=final, source=source)
        if own is not None:
            return own
    return LibraryTokenizer(spec, roles=roles, separators=separators, source=source)


def _lower_case(settings: dict[str, Any], path: epath.Path) -> bool:
    if "do_lower_case" not in settings:
        raise _wrong(path, "do_lower_case", "nothing", "true, false")
    if (found := _flag(settings, path, "do_lower_case")) is None:
        raise _wrong(path, "do_lower_case", "null", "true, false")
    return found


def _flag(settings: dict[str, Any], path: epath.Path, name: str) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(path, name, shown(value), "true, false, null")
    return value


def _no_settings(root: epath.Path) -> UserError:
    """Returns the error for a directory without settings, and without a ``tokenizer.json``."""
    if (root / VOCAB_FILE).exists():
        return UserError(
            "tokenizer.casing_unknown",
            'its casing is unknown. Add tokenizer_config.json with {"do_lower_case": true} or '
            "false.",
            place=root,
        )
    return UserError.wrong(
        "tokenizer.no_settings", "no tokenizer_config.json", "a tokenizer directory", place=root
    )


def _refuse_fairseq(root: epath.Path) -> None:
    """Raises UserError for a ``vocab.txt`` of fairseq: words with their counts."""
    if (root / _FAIRSEQ_FILE).exists():
        raise UserError(
            "tokenizer.fairseq",
            f"found {_FAIRSEQ_FILE}: vocab.txt is fairseq's dictionary. Add a tokenizer.json.",
            place=root,
        )


def _refuse_foreign(root: epath.Path) -> None:
    """Raises UserError for a SentencePiece model whose ids are not the model's."""
    for name in _FOREIGN:
        if (root / name).exists():
            raise UserError(
                "tokenizer.slow_only",
                f"found {name} without tokenizer.json. Write it with transformers' AutoTokenizer.",
                place=root,
            )


def _refuse_foreign_model(path: epath.Path) -> None:
    """Raises UserError for a SentencePiece model with the special pieces of ALBERT or T5."""
    content = read_bytes(path)  # pieces are plain text in it
    if PAD.encode() not in content and b"<pad>" in content:
        raise UserError(
            "tokenizer.foreign_model",
            "found <pad> instead of [PAD]. Write tokenizer.json with AutoTokenizer's "
            "save_pretrained. For ALBERT, use --uncased or --cased.",
            place=path,
        )


def _wrong(path: epath.Path, key: str, found: str, allowed: object, hint: str = "") -> UserError:
    return UserError.wrong("tokenizer.setting", found, f"{allowed}{hint}", place=f"{path}: {key}")


def _kind(settings: dict[str, Any], root: epath.Path) -> str:
    """Returns ``type`` of the settings. Without it, returns the type of the vocabulary file.

    A ``tokenizer.json`` determines the ids, since transformers reads it first. Only beside our own
    ``spiece.model`` is it a copy.
    """
    has_pipeline = any((root / name).exists() for name in _PIPELINES)
    if "type" in settings:
        kind = str(settings["type"])
        if kind not in _FILE_OF_TYPE:
            hint = did_you_mean(kind, _FILE_OF_TYPE)
            raise _wrong(root / CONFIG_FILE, "type", f'"{kind:.60}"', [*_FILE_OF_TYPE], hint)
        copied = kind == "sentencepiece" and (root / MODEL_FILE).exists()
        return "tokenizers" if has_pipeline and not copied else kind
    if has_pipeline:
        return "tokenizers"
    for kind, name in _FILE_OF_TYPE.items():
        if (root / name).exists():
            return kind
    raise UserError.wrong(
        "tokenizer.no_vocabulary", f"no {one_of(_FILE_OF_TYPE.values())}", "one of them", place=root
    )
