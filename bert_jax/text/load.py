"""Opens a tokenizer directory of any kind."""

from typing import Any

from etils import epath

from bert_jax.errors import UserError, did_you_mean, differing
from bert_jax.files.read import read_bytes, read_json_object, shown
from bert_jax.text.sentence_piece import MODEL_FILE, SentencePieceTokenizer
from bert_jax.text.tokenizer import CONFIG_FILE, Tokenizer
from bert_jax.text.wordpiece import VOCAB_FILE, load_wordpiece

_FLAGS = {"strip_accents": None, "tokenize_chinese_chars": True}  # with their defaults
_FILE_OF_TYPE = {"wordpiece": VOCAB_FILE, "sentencepiece": MODEL_FILE}


def load_tokenizer(directory: epath.PathLike) -> Tokenizer:
    """Opens what ``Tokenizer.save`` wrote, or a Hugging Face directory with a ``vocab.txt``.

    A local or ``gs://`` directory with ``tokenizer_config.json``, which must state
    ``do_lower_case``, and ``vocab.txt`` or ``spiece.model``. Raises UserError: a file is missing or
    damaged, a setting is missing or ill-typed, a special piece is missing, a piece is there twice,
    or the files do not belong together.
    """
    root = epath.Path(directory)
    if not root.is_dir():
        raise UserError(
            f"{root}: found no such directory, allowed: a tokenizer directory; `bert-jax vocab` "
            "makes one"
        )
    path = root / CONFIG_FILE
    if not path.exists():
        raise UserError(_no_settings(root))
    config = read_json_object(path)
    kind = _kind(config, root)
    if "do_lower_case" not in config:
        raise UserError(f"{path}: do_lower_case: found nothing, allowed: true, false")
    for key, default in (("do_lower_case", None), *_FLAGS.items()):
        value = config.setdefault(key, default)
        if value is not None and not isinstance(value, bool):
            raise UserError(f"{path}: {key}: found {shown(value)}, allowed: true, false, null")
    if (lower_case := config["do_lower_case"]) is None:
        raise UserError(f"{path}: do_lower_case: found null, allowed: true, false")
    tokenizer: Tokenizer
    file, strip_accents = root / _FILE_OF_TYPE[kind], config["strip_accents"]
    if kind == "wordpiece":
        chinese = config["tokenize_chinese_chars"] is not False
        tokenizer = load_wordpiece(
            file, lower_case=lower_case, strip_accents=strip_accents, chinese=chinese
        )
    else:
        tokenizer = SentencePieceTokenizer(
            read_bytes(file), lower_case=lower_case, strip_accents=strip_accents, source=str(file)
        )
    recorded = config.get("hash", tokenizer.hash)
    if recorded != tokenizer.hash:
        found, wanted = differing(str(recorded), tokenizer.hash)
        raise UserError(
            f"{path}: hash: found {found}, allowed: {wanted}, which {_FILE_OF_TYPE[kind]} and the "
            f"settings have: one of the files was changed"
        )
    return tokenizer


def _no_settings(root: epath.Path) -> str:
    if (root / VOCAB_FILE).exists():
        return (
            f"{root}: found {VOCAB_FILE} without {CONFIG_FILE}, so its casing is not known; "
            f'allowed: a {CONFIG_FILE} with {{"do_lower_case": true}} (uncased) or false beside it'
        )
    return f"{root}: found no {CONFIG_FILE}, allowed: a tokenizer directory"


def _kind(config: dict[str, Any], root: epath.Path) -> str:
    """Returns our ``type``; without it, the type that the files have."""
    if "type" in config:
        kind = str(config["type"])
        if kind not in _FILE_OF_TYPE:
            raise UserError(
                f'{root / CONFIG_FILE}: type: found "{kind:.60}", allowed: '
                f"{', '.join(_FILE_OF_TYPE)}{did_you_mean(kind, _FILE_OF_TYPE)}"
            )
        return kind
    for kind, name in _FILE_OF_TYPE.items():
        if (root / name).exists():
            return kind
    raise UserError(f"{root}: found neither {VOCAB_FILE} nor {MODEL_FILE}, allowed: one of them")
