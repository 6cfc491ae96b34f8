"""Files that all kinds of models of sentence-transformers have, beside those of Hugging Face."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from etils import epath

from bert_jax.errors import UserError, commas, one_of
from bert_jax.files.read import parse_json, read_json_object, read_text
from bert_jax.interop import sentence_transformers_sections as sections
from bert_jax.interop.hf_tokenizer import tokenizer_files
from bert_jax.interop.sources import MODULES, is_folder_name
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.model.text_head import VectorHeadSection
from bert_jax.validation import read_section, validate

# Old files have the name of another encoder. The first file with content counts.
_OLD_TRANSFORMERS: Final = tuple(
    f"sentence_{name}_config.json"
    for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# The prompts of `encode_query` and `encode_document`. Every model has both, empty by default, so
# `encode_document` never uses the other names that it lists.
_QUERY: Final = "query"
_PASSAGE: Final = "document"
_UNREACHED: Final = ("passage", "corpus")
_DEFAULT: Final = "default"  # our name of a prompt without a role

FileT = TypeVar("FileT", bound=sections.PromptsFile)
ModuleT = TypeVar("ModuleT", bound=sections.TransformerSettings)


def read_modules(
    directory: Path, steps: Sequence[str], *, optional: Sequence[str] = ()
) -> dict[str, str]:
    """Returns the directories of the modules by name, in order.

    Raises UserError if they are not `steps`, with or without the `optional` ones.
    """
    path = directory / MODULES
    try:
        listed = parse_json(read_text(epath.Path(path)))
    except UserError as error:
        raise error if error.place else error.with_place(str(path)) from None
    modules = [
        validate(sections.ModuleEntry, each, source=f"{path}: module {number}")
        for number, each in enumerate(listed if isinstance(listed, list) else [listed])
    ]
    found = [module.name for module in modules]
    if found != [name for name in steps if name not in optional or name in found]:
        without = f" with or without {one_of(optional)}" if optional else ""
        names = commas([f"{name:.60}" for name in found])
        allowed = f"{commas(steps)}, in this order{without}"
        raise UserError.wrong("import.modules", names, allowed, place=path)
    inside = {each.name for each in directory.iterdir() if each.is_dir()}
    for module in modules:
        # Old versions wrote no directory for Normalize.
        known = inside | {"Transformer": {""}, "Normalize": {module.path}}.get(module.name, set())
        if module.path not in known or not is_folder_name(module.path):
            name, allowed = f'"{module.path:.60}" for {module.name}', "a directory beside the file"
            raise UserError.wrong("import.module_path", name, allowed, place=path)
    return {module.name: module.path for module in modules}


def write_modules(directory: Path, folders: Mapping[str, str]) -> None:
    """Writes ``modules.json``. `folders` are the directories of the modules by type."""
    listed = [
        {"idx": index, "name": str(index), "path": folder, "type": type}
        for index, (type, folder) in enumerate(folders.items())
    ]
    sections.write_json(directory / MODULES, listed)


def read_model_file(directory: Path, kind: type[FileT]) -> FileT:
    """Returns the settings of config_sentence_transformers.json, or defaults without this file."""
    path = epath.Path(directory / sections.SETTINGS)
    return read_section(kind, path) if path.exists() else kind()


def read_prompts(directory: Path, found: sections.PromptsFile) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings of prefixes in a `VectorHeadSection`, and notes for the user."""
    path = directory / sections.SETTINGS
    prompts = {_QUERY: "", _PASSAGE: ""} | {key: text or "" for key, text in found.prompts.items()}
    query, passage = prompts[_QUERY], prompts[_PASSAGE]
    name = found.default_prompt_name
    if name is not None and name not in prompts:
        place = f"{path}: default_prompt_name"
        raise UserError.unknown("import.default_prompt", name, prompts, place=place)
    default = "" if name is None else prompts[name]
    notes, used = [], ("", query, passage, default)
    if others := sorted(name for name, text in prompts.items() if text not in used):
        notes.append(f"prompts not imported: {', '.join(others)}")
    for name in _UNREACHED:
        if name in others:
            notes.append(
                f'the prompt "{name}" is not used for passages, as in encode_document of '
                f'sentence-transformers. Put "{prompts[name]}" before the texts, or name it '
                f'"{_PASSAGE}" in {path.name}.'
            )
    if default:
        notes.append(f'encode adds "{default}" to texts without a prompt (default_prompt_name)')
    prefixes = {"default_prefix": default, "query_prefix": query, "passage_prefix": passage}
    return prefixes, notes


def written_prompts(head: VectorHeadSection) -> dict[str, Any]:
    """Returns the settings of prompts in ``config_sentence_transformers.json``."""
    prompts = {_QUERY: head.query_prefix, _PASSAGE: head.passage_prefix}
    if head.default_prefix and head.default_prefix not in prompts.values():
        prompts[_DEFAULT] = head.default_prefix
    default = next((name for name, text in prompts.items() if text == head.default_prefix), None)
    return {
        "prompts": prompts,
        "default_prompt_name": default if head.default_prefix else None,
    }


def transformer_file(directory: Path) -> Path | None:
    """Returns the file with the settings of Transformer. Like their library, skips empty ones."""
    paths = (directory / name for name in (sections.TRANSFORMER, *_OLD_TRANSFORMERS))
    return next(
        (path for path in paths if path.exists() and read_json_object(epath.Path(path))), None
    )


def all_files(encoder: Path, own: Iterable[Path], model: Pretrained) -> tuple[Path, ...]:
    """Returns the files of a text head that exist, and those of its encoder with the tokenizer.

    `own` are possible files of the head, and `model` is the encoder that was read.
    """
    possible = (*own, transformer_file(encoder))
    existing = [path for path in possible if path is not None and path.exists()]
    return (*existing, *model.files, *tokenizer_files(encoder))


def read_transformer(
    directory: Path, model: Pretrained, kind: type[ModuleT], *, task: str = "feature-extraction"
) -> ModuleT:
    """Returns the settings of Transformer.

    Raises UserError if its task is not `task`, or the settings do not fit the tokenizer.
    """
    path = transformer_file(directory)
    found = kind() if path is None else read_section(kind, epath.Path(path))
    if found.transformer_task not in (None, task):
        name, place = f"{found.transformer_task:.60}", f"{path}: transformer_task"
        raise UserError.wrong("import.transformer_task", name, task, place=place)
    if found.do_lower_case and getattr(model.tokenizer, "lower_case", False) is not True:
        allowed, place = "false, like the tokenizer", f"{path}: do_lower_case"
        raise UserError.wrong("import.lower_case", "true", allowed, place=place)
    return found
