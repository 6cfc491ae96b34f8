"""Reads and writes the files that sentence-transformers adds to a Hugging Face checkpoint.

``modules.json`` lists the steps from a text to its vector: Transformer, Pooling, Dense, Normalize.
`PoolingSection` has the same steps.
"""

from pathlib import Path
from typing import Final, Literal

from etils import epath

from bert_jax.errors import UserError, commas
from bert_jax.files.read import read_json_object
from bert_jax.interop import sentence_transformers_files as st_files
from bert_jax.interop import sentence_transformers_sections as sections
from bert_jax.interop import tensor_conversion as tensors
from bert_jax.interop.dense_module import read_dense, read_projection, write_dense
from bert_jax.interop.hf_checkpoint import CONFIG, read_hf
from bert_jax.interop.sources import MODULES
from bert_jax.model.text_head import Pool, PoolingSection
from bert_jax.text import Tokenizer
from bert_jax.validation import read_section

_STEPS: Final = ("Transformer", "Pooling", "Dense", "Normalize")
_OPTIONAL: Final = ("Dense", "Normalize")
_SIMILARITY: Final[dict[bool, Literal["cosine", "dot"]]] = {True: "cosine", False: "dot"}

_POOLS: Final[dict[str, Pool]] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Keys of all modes before sentence-transformers 5.4. Later versions read them too.
_MODE_KEYS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def is_sentence_transformers(directory: Path) -> bool:
    """Returns whether a directory has the modules.json of a model of sentence embeddings."""
    others = ("CrossEncoder", "SparseEncoder", "MultiVectorEncoder", "ColBERT")
    return (directory / MODULES).exists() and sections.model_type(directory) not in others


def encoder_directory(directory: Path) -> Path:
    """Returns the directory of the Transformer module: the same one, or an older 0_Transformer."""
    return directory / st_files.read_modules(directory, _STEPS, optional=_OPTIONAL)["Transformer"]


def read_sentence_transformers(
    directory: Path, *, tokenizer: Tokenizer | None = None
) -> tensors.Pretrained:
    """Reads a model of sentence embeddings with its encoder.

    Args:
        directory: Hugging Face's files beside modules.json, and a directory for each module.
        tokenizer: tokenizer for a checkpoint that has none.

    Raises:
        UserError: `PoolingSection` has no such module, pooling or activation of Dense; also as in
            `read_hf`.
    """
    # First, because they are small.
    modules = st_files.read_modules(directory, _STEPS, optional=_OPTIONAL)
    encoder = directory / modules["Transformer"]
    pool = _read_pooling(directory / modules["Pooling"] / CONFIG)
    layer = None
    if "Dense" in modules:
        folder = directory / modules["Dense"]
        layer = read_dense(folder, read_json_object(epath.Path(folder / CONFIG)))
    normalize = directory / modules["Normalize"] / CONFIG if "Normalize" in modules else None
    if normalize is not None and normalize.exists():
        read_section(sections.VectorModule, epath.Path(normalize))
    settings = st_files.read_model_file(directory, sections.ModelFile)
    prompts, notes = st_files.read_prompts(directory, settings)
    model = read_hf(encoder, tokenizer=tokenizer)
    transformer = st_files.read_transformer(encoder, model, sections.TransformerModule)
    by_cosine = settings.similarity_fn_name in (None, "cosine")
    embedding = PoolingSection(
        pool=pool,
        normalize=normalize is not None,
        projection=None if layer is None else layer.width,
        dimensions=settings.truncate_dim,
        similarity=None if by_cosine == (normalize is not None) else _SIMILARITY[by_cosine],
        max_length=sections.longest_text(encoder, model, limit=transformer.longest),
        **prompts,
    )
    heads = model.heads.model_copy(update={"embedding": embedding})
    params, files = model.params, [directory / MODULES, directory / modules["Pooling"] / CONFIG]
    if layer is not None:
        params = params | read_projection(layer, model, heads)
        files += layer.files
    files += [directory / sections.SETTINGS, *([normalize] if normalize is not None else [])]
    notes = [*model.notes, *notes, *transformer.notes]
    if settings.truncate_dim is not None:
        notes.append(
            f"vectors have {settings.truncate_dim} numbers (truncate_dim). They are cut after "
            "normalisation, so compare them by the cosine."
        )
    return model._replace(
        heads=heads,
        params=params,
        files=st_files.all_files(encoder, files, model),
        notes=tuple(notes),
    )


def write_sentence_transformers(directory: Path, model: tensors.Pretrained) -> None:
    """Writes the files beside a checkpoint of `write_hf`, for sentence-transformers 5 and 6.

    The model has `HeadsSection.embedding`. A learned temperature is not written. Raises UserError
    if the disk is full.
    """
    how = model.heads.embedding
    assert how is not None
    used = {"Transformer", "Pooling"}
    used |= {"Dense"} if how.projection is not None else set()
    used |= {"Normalize"} if how.normalize else set()
    names = [name for name in _STEPS if name in used]
    folders = {name: f"{index}_{name}" if index else "" for index, name in enumerate(names)}
    for folder in folders.values():
        (directory / folder).mkdir(exist_ok=True)
    width = model.architecture.hidden_size
    modes = {key: _POOLS.get(mode) == how.pool for key, mode in _MODE_KEYS.items()}
    pooling = {"word_embedding_dimension": width, **modes, "include_prompt": True}
    sections.write_json(directory / folders["Pooling"] / CONFIG, pooling)
    if "Dense" in folders:
        write_dense(directory / folders["Dense"], model, bias=True)
    length = model.heads.longest_text(model.architecture.max_position_embeddings)
    sections.write_json(
        directory / sections.TRANSFORMER, {"max_seq_length": length, "do_lower_case": False}
    )
    settings = {
        "model_type": "SentenceTransformer",
        **st_files.written_prompts(how),
        "similarity_fn_name": _SIMILARITY[how.by_cosine],
    }
    if how.dimensions is not None:
        settings["truncate_dim"] = how.dimensions
    sections.write_json(directory / sections.SETTINGS, settings)
    st_files.write_modules(
        directory, {f"{sections.PACKAGE}models.{name}": folders[name] for name in names}
    )


def _read_pooling(path: Path) -> Pool:
    values = read_json_object(epath.Path(path))
    found = values.get("pooling_mode")
    if found is None:
        found = [mode for key, mode in _MODE_KEYS.items() if values.get(key) is True] or ["mean"]
    modes = found if isinstance(found, list) else [found]
    if len(modes) != 1 or modes[0] not in tuple(_POOLS):
        found = commas([f"{mode!s:.60}" for mode in modes])
        raise UserError.wrong("import.pooling", found, f"one of {commas(_POOLS)}", place=path)
    if values.get("include_prompt", True) is not True:
        place = f"{path}: include_prompt"
        raise UserError.wrong("import.prompt_left_out", "false", "true", place=place)
    return _POOLS[modes[0]]


_USAGE: Final = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
queries = model.encode_query(["a question"])
passages = model.encode_document(["an answer", "another answer"])
print(model.similarity(queries, passages))
```"""
FORMAT: Final = sections.TextHeadFormat(
    is_sentence_transformers,
    read_sentence_transformers,
    write_sentence_transformers,
    _USAGE,
    "sentence-similarity",
    "sentence-similarity, feature-extraction",
)
"""The format of sentence embeddings."""
