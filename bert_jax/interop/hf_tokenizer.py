"""Translates between Hugging Face's tokenizer files and our tokenizers."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.interop.sentencepiece_file import BPE, parse_model
from bert_jax.text import Tokenizer
from bert_jax.text.added_tokens import ADDED_FILE
from bert_jax.text.library_settings import SPECIAL_FILE
from bert_jax.text.library_tokenizer import LibraryTokenizer, pipeline_bytes
from bert_jax.text.pipeline_file import Roles, check_spec, pieces_of
from bert_jax.text.roberta_files import MERGES_FILE, VOCABULARY_FILE
from bert_jax.text.sentence_piece import MODEL_FILE, WORD_START, SentencePieceTokenizer
from bert_jax.text.special_rows import adds_special, rows_of
from bert_jax.text.spm_file import SPM_FILE
from bert_jax.text.tokenizer import CONFIG_FILE
from bert_jax.text.vocabulary import CLS, SEP, SPECIAL_PIECES, UNK, SpecialIds
from bert_jax.text.wordpiece import CONTINUATION, VOCAB_FILE, WordPieceTokenizer

FAST: Final = "tokenizer.json"
_INPUTS: Final = ["input_ids", "token_type_ids", "attention_mask"]
_UNTYPED_INPUTS: Final = ["input_ids", "attention_mask"]
# Special pieces score this much less than every other piece. Otherwise a unigram model would encode
# the text "[unused1]" as the special piece.
_SPECIAL_PENALTY: Final = 1000.0


def tokenizer_files(directory: Path) -> list[Path]:
    """Returns the tokenizer files of a checkpoint."""
    names = (
        *(VOCAB_FILE, CONFIG_FILE, MODEL_FILE, FAST, SPECIAL_FILE, ADDED_FILE),
        *(VOCABULARY_FILE, MERGES_FILE, SPM_FILE),
    )
    named = (directory / name for name in names)
    return [path for path in named if path.exists()]


def write_hf_tokenizer(
    directory: Path, tokenizer: Tokenizer, *, max_length: int, token_types: bool
) -> None:
    """Writes vocab.txt or spiece.model, tokenizer_config.json and tokenizer.json.

    Args:
        directory: an existing directory.
        tokenizer: the tokenizer.
        max_length: tokens of the model's longest row.
        token_types: whether the model distinguishes the spans of a pair by token types.
    """
    tokenizer.save(epath.Path(directory))
    added: dict[str, object] = {"model_max_length": max_length}
    if not token_types:
        added["model_input_names"] = _UNTYPED_INPUTS
    pipeline: tokenizers.Tokenizer | None = None
    if isinstance(tokenizer, LibraryTokenizer):
        added.setdefault("model_input_names", _INPUTS)
        processor = _post_processor(tokenizer, token_types=token_types)
        spec = tokenizer.spec | {"post_processor": processor}
        write_whole(epath.Path(directory) / FAST, pipeline_bytes(spec))
    elif isinstance(tokenizer, SentencePieceTokenizer):
        # PreTrainedTokenizerFast reads tokenizer.json. ALBERT's class would instead build a
        # tokenizer from spiece.model, with another id for [UNK].
        added["tokenizer_class"] = "PreTrainedTokenizerFast"
        added.setdefault("model_input_names", _INPUTS)
        special = zip(SpecialIds._fields, SPECIAL_PIECES, strict=True)
        added |= {f"{name}_token": piece for name, piece in special}
        pipeline = sentencepiece_pipeline(tokenizer)
    else:
        assert isinstance(tokenizer, WordPieceTokenizer)
        pipeline = library_pipeline(tokenizer)
        pipeline.decoder = decoders.WordPiece(prefix=CONTINUATION)
    settings_file = epath.Path(directory) / CONFIG_FILE
    settings = read_json_object(settings_file) | added
    write_whole(settings_file, (json.dumps(settings, indent=2) + "\n").encode())
    if pipeline is not None:
        _add_special(pipeline, tokenizer)
        write_whole(epath.Path(directory) / FAST, pipeline.to_str(pretty=True).encode())


def with_markers(tokenizer: Tokenizer, markers: Iterable[str]) -> Tokenizer:
    """Returns a tokenizer that encodes each marker, such as ``[unused0]``, as one piece.

    ColBERT puts the piece of such a marker before queries and passages. A marker, or its first
    word, that is no piece stays ordinary text.
    """
    special: list[str] = []
    for marker in filter(str.strip, markers):
        for piece in (marker, marker.split()[0]):
            if ids := tokenizer.ids_of([piece]):
                special += [piece] if tuple(tokenizer.encode(piece)) != ids else []
                break
    if not special:
        return tokenizer
    if isinstance(tokenizer, LibraryTokenizer):
        spec, roles, separators = tokenizer.spec, tokenizer.roles, tokenizer.separators
    else:
        assert isinstance(tokenizer, WordPieceTokenizer)
        spec = check_spec(json.loads(library_pipeline(tokenizer).to_str()), FAST)
        roles, separators = Roles(*tokenizer.special_pieces), tokenizer.separators
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": tokenizer.ids_of([piece])[0], "content": piece, **flags, "special": True}
        for piece in special
    ]
    others = [token for token in spec["added_tokens"] if token["content"] not in special]
    spec = spec | {"added_tokens": [*others, *added]}
    return LibraryTokenizer(spec, roles=roles, separators=separators)


def _post_processor(tokenizer: LibraryTokenizer, *, token_types: bool) -> dict[str, Any]:
    """Returns the part of tokenizer.json that writes the special pieces of a row.

    Without token types, a part that writes special pieces stays as it is.
    """
    spec = tokenizer.spec
    if not token_types and adds_special(spec):
        return spec["post_processor"]
    ids = pieces_of(spec)
    return rows_of(tokenizer.roles, ids, tokenizer.separators, second=int(token_types))


def library_pipeline(tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
    """Returns a BERT pipeline of the tokenizers library with our vocabulary and settings.

    Its results differ from ours for the rare characters that docs/interop.md lists.
    """
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    pipeline = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: index for index, piece in enumerate(pieces)},
            unk_token=UNK,
            max_input_chars_per_word=tokenizer.max_word_characters,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    pipeline.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenizer.chinese,
        strip_accents=tokenizer.strip_accents,
        lowercase=tokenizer.lower_case,
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return pipeline


def _add_special(pipeline: tokenizers.Tokenizer, tokenizer: Tokenizer) -> None:
    """Makes a pipeline add [CLS] and [SEP] to texts and recognize special pieces in a text."""
    special = tokenizer.special
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, special.cls), (SEP, special.sep)],
    )
    pipeline.add_special_tokens([tokenizers.AddedToken(piece) for piece in SPECIAL_PIECES])


def sentencepiece_pipeline(tokenizer: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    """Returns a pipeline of the tokenizers library with our pieces, scores and settings.

    Its results differ from ours for the texts that docs/interop.md lists. Source: `SpmConverter` in
    Hugging Face transformers, `convert_slow_tokenizer.py`.
    """
    parsed = parse_model(tokenizer.model)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    scores = tokenizer.scores()  # without special pieces
    if parsed.trainer_spec.model_type == BPE:
        model: models.Model = models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            list(_merges(scores)),
            unk_token=UNK,
            fuse_unk=True,
        )
    else:
        never = min(scores.values()) - _SPECIAL_PENALTY
        model = models.Unigram(
            [(piece, scores.get(piece, never)) for piece in pieces], unk_id=tokenizer.special.unk
        )
    pipeline = tokenizers.Tokenizer(model)
    pipeline.normalizer = normalizers.Sequence(
        [
            *_fold(tokenizer),
            normalizers.Precompiled(parsed.normalizer_spec.precompiled_charsmap),
            normalizers.Strip(),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme="always")
    pipeline.decoder = decoders.Metaspace(WORD_START, prepend_scheme="always")
    return pipeline


def _fold(tokenizer: SentencePieceTokenizer) -> Iterator[normalizers.Normalizer]:
    """Yields the steps of `bert_jax.text.basic_tokenizer.fold` as normalizers."""
    if tokenizer.lower_case:
        # `Lowercase` does not map a final Σ to ς.
        yield normalizers.Replace(tokenizers.Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς")
        yield normalizers.Lowercase()
    if tokenizer.drops_accents:
        yield normalizers.NFD()
        # `StripAccents` would also remove the vowel signs (Mc) of Indic scripts.
        yield normalizers.Replace(tokenizers.Regex(r"\p{Mn}"), "")
        # Compose Hangul syllables of three letters. `Precompiled` composes only syllables of two.
        yield normalizers.NFC()


def _merges(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yields the merges of a BPE model, best first: pairs of pieces that together form a piece.

    A SentencePiece model stores no merges. It always joins the two neighbours that form the piece
    with the best score, so the scores determine the merges and their order.
    """
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = (pair for pair in halves if pair[0] in scores and pair[1] in scores)
        yield from sorted(known, key=lambda pair: (-scores[pair[0]], -scores[pair[1]]))
