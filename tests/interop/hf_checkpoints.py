"""Hugging Face checkpoints for the tests, and runs imported from them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import torch
import transformers
from etils import epath
from flax import nnx, serialization
from flax.traverse_util import unflatten_dict
from transformers import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    EuroBertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
)

from bert_jax.encoders.bert.model import Bert
from bert_jax.encoders.bert.section import BertSection
from bert_jax.interop.hf_config import format_of
from bert_jax.interop.tensor_conversion import definition_of, expand, their_tensors
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.parallel.mesh import make_mesh, open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import CHECKPOINTS, Run, open_run, write_run
from bert_jax.text import Tokenizer
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import abstract_params, define_model, draw_params
from bert_jax.verbs.import_checkpoint import import_checkpoint
from tests.interop import reference_neobert

Model = TypeVar("Model", bound=PreTrainedModel)
Config = TypeVar("Config", bound=PreTrainedConfig)

# Settings of the released DeBERTaV3, whose rows are longer than the exact half of its buckets.
DEBERTA_V3: dict[str, Any] = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "max_relative_positions": -1,
    "position_biased_input": False,
    "type_vocab_size": 0,
}
NEOBERT = {
    **{"vocab_size": 150, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 60, "max_length": 40, "initializer_range": 0.2, "hidden_act": "SwiGLU"},
}

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class Imported(NamedTuple):
    """An opened run directory with its parameters."""

    run: Run
    params: dict[str, Any]  # nested dict of numpy arrays

    @property
    def model(self) -> Bert:
        """The run's model with its parameters."""
        return bind(self.run.build, self.params)

    def theirs(self, tree: Any) -> dict[str, np.ndarray]:
        """Converts a tree of the parameters' structure to Hugging Face's names and shapes."""
        return under_their_names(tree, self.run.architecture, self.run.heads)


def under_their_names(
    tree: Any, architecture: EncoderArchitecture, heads: HeadsSection
) -> dict[str, np.ndarray]:
    """Converts parameters or gradients of a model with heads to Hugging Face's names and shapes."""
    form, definition = format_of(architecture.kind), definition_of(architecture, heads)
    rules = form.names(form.prefix, heads.task)
    return dict(their_tensors(tree, expand(rules, definition, architecture=architecture)))


def bind(build: Callable[[], Any], params: Any) -> Any:
    """Returns the model from `build` with the given parameters."""
    return nnx.merge(define_model(build).graphdef, jax.tree.map(jnp.asarray, params))


def hf_config(kind: Callable[..., Config] = BertConfig, **changes: Any) -> Config:
    """Returns a small configuration of BERT or a relative.

    Its large initial weights make activations nonlinear.
    """
    values: dict[str, Any] = {
        "vocab_size": 150,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 40,
        "initializer_range": 0.2,
        "attn_implementation": "eager",
    }
    return kind(**(values | changes))


def modernbert_config(kind: Callable[..., Config] = ModernBertConfig, **changes: Any) -> Config:
    """Returns a small configuration of ModernBERT or a relative, for `write_tokenizer`'s pieces."""
    values: dict[str, Any] = {
        "intermediate_size": 48,
        "max_position_embeddings": 100,
        "pad_token_id": 0,
        **dict.fromkeys(("cls_token_id", "bos_token_id"), 2),
        **dict.fromkeys(("sep_token_id", "eos_token_id"), 3),
        "mask_token_id": 4,
    }
    return hf_config(kind, **(values | changes))


def roberta_config(kind: Callable[..., Config] = RobertaConfig, **changes: Any) -> Config:
    """Returns a small configuration of RoBERTa, for the pieces of `write_tokenizer`."""
    values: dict[str, Any] = {
        "max_position_embeddings": 41,  # 40 tokens
        "type_vocab_size": 1,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    return hf_config(kind, **(values | changes))


def model_class(kind: str) -> Any:
    """Returns a class of Hugging Face's, or of NeoBERT, by its name."""
    of_library: Any = getattr(transformers, kind, None)
    return of_library or getattr(reference_neobert, kind)


def small_config(kind: str, **changes: Any) -> PreTrainedConfig:
    """Returns a small configuration of a class of Hugging Face's: ``RobertaForMaskedLM``."""
    own = model_class(kind).config_class
    if issubclass(own, ModernBertConfig | EuroBertConfig):
        return modernbert_config(own, **changes)
    if issubclass(own, reference_neobert.NeoBERTConfig):
        return own(**{**NEOBERT, **changes})
    if issubclass(own, DebertaV2Config):
        return hf_config(own, **{**DEBERTA_V3, **changes})
    if issubclass(own, ElectraConfig | AlbertConfig):
        return hf_config(own, **{"embedding_size": 24, **changes})
    if issubclass(own, DistilBertConfig):
        # Its attribute map lacks the width of the FFN.
        inner = changes.pop("intermediate_size", 64)
        return hf_config(own, **{"hidden_dim": inner, **changes})
    return hf_config(**changes) if own is BertConfig else roberta_config(own, **changes)


def hf_model(
    kind: Callable[..., Model], config: PreTrainedConfig, *, seed: int = 0, **options: Any
) -> Model:
    """Returns a model with random weights, in evaluation mode.

    Adds noise to biases and scales, so that tests fail if one of them is lost or swapped.
    """
    torch.manual_seed(seed)
    model = kind(config, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def save(
    model: PreTrainedModel, directory: Path, *, pieces: int | None = None, **options: Any
) -> Path:
    """Saves a model with `save_pretrained`, and a tokenizer.

    The tokenizer has `pieces` pieces, by default as many as the model's vocabulary.
    """
    model.save_pretrained(directory, **options)
    write_tokenizer(directory, pieces or model.config.vocab_size)
    return directory


def write_flax(model: PreTrainedModel, directory: Path) -> None:
    """Writes a model as the Flax classes of transformers 4 did.

    A module's matrix is named by its type, and the matrix of a dense layer is [inputs, outputs].
    """
    names: dict[type[torch.nn.Module], str] = {
        torch.nn.Linear: "kernel",
        torch.nn.Embedding: "embedding",
        torch.nn.LayerNorm: "scale",
    }
    nested: dict[str, Any] = {}
    for path, module in model.named_modules():
        if path.endswith("predictions.decoder") or path == "lm_head.decoder":
            continue  # tied
        for name, parameter in module.named_parameters(recurse=False):
            array = parameter.detach().numpy()
            last = names[type(module)] if name == "weight" else name
            nested[f"{path}.{last}"] = array.T if last == "kernel" else array
    model.config.save_pretrained(directory)
    tree = unflatten_dict(nested, sep=".")
    (directory / "flax_model.msgpack").write_bytes(serialization.to_bytes(tree))


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Writes vocab.txt and tokenizer_config.json."""
    pieces = [*SPECIAL, *(f"w{index}" for index in range(vocab_size - len(SPECIAL)))]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def import_run(source: Path, run_dir: Path) -> Imported:
    """Imports a checkpoint with the verb, and opens the new run directory."""
    return read_run(import_checkpoint(str(source), str(run_dir)))


def fresh_run(root: Path, tokenizer: Tokenizer, **changes: Any) -> Imported:
    """Writes a small run with random parameters, and opens it. `changes` are of the sizes."""
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "initializer_range": 0.2,
        **changes,
    }
    section = BertSection.model_validate({"architecture": sizes, "execution": {"dtype": "float32"}})
    write_run(
        epath.Path(root),
        {},
        run_dir=str(root),
        execution=section.execution,
        heads=section.heads,
        architecture=section.resolve(vocab_size=tokenizer.vocab_size),
        tokenizer=tokenizer,
        origin={},
    )
    model = define_model(open_run(root).build)
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])
    params = draw_params(model, abstract_params(model, mesh), seed=5)
    with Checkpointer(root / CHECKPOINTS, CheckpointSection()) as checkpointer:
        checkpointer.save_params(params, step=3)
    return read_run(root)


def read_run(run_dir: Path) -> Imported:
    """Opens a run directory and reads its last checkpoint."""
    run = open_run(run_dir)
    loaded = load_params(run, checkpoint="last", mesh=open_mesh(one_device=True))
    return Imported(run, jax.device_get(loaded.params))


def mixed_batch(config: PreTrainedConfig, *, rows: int = 5, seed: int = 7) -> dict[str, np.ndarray]:
    """Returns rows of unequal length, with unequal numbers of masks at distinct positions.

    [PAD] occurs only in the padding, since torch computes no gradient for its embedding.
    """
    rng, length, predictions = np.random.default_rng(seed), 24, 6
    lengths = np.linspace(predictions + 1, length, rows).astype(int)
    inside = np.arange(length) < lengths[:, None]
    counts = rng.integers(1, predictions + 1, rows)
    positions = np.stack([rng.permutation(span)[:predictions] for span in lengths])
    ids = rng.integers(1, config.vocab_size, (rows, length))
    types = rng.integers(0, getattr(config, "type_vocab_size", 0) or 1, (rows, length))
    return {
        "input_ids": np.where(inside, ids, 0).astype(np.int32),
        "token_type_ids": np.where(inside, types, 0).astype(np.int32),
        "segment_ids": inside.astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": rng.integers(1, config.vocab_size, positions.shape).astype(np.int32),
        "masked_lm_weights": (np.arange(predictions) < counts[:, None]).astype(np.float32),
        "cls_positions": np.zeros((rows, 1), np.int32),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
        "next_sentence_weights": np.ones((rows, 1), np.float32),
    }


def torch_inputs(batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns the arrays of a batch that Hugging Face's models read."""
    ours = {"input_ids": "input_ids", "token_type_ids": "token_type_ids"}
    ours["attention_mask"] = "segment_ids"
    return {theirs: torch.from_numpy(batch[name]).long() for theirs, name in ours.items()}


def google_loss(model: PreTrainedModel, batch: Mapping[str, np.ndarray]) -> torch.Tensor:
    """Returns google-research/bert's loss: Σ(w·nll)/(Σw + 1e-5) + mean NSP nll.

    The logits are Hugging Face's.

    Source: `get_masked_lm_output` and `get_next_sentence_output` in google-research/bert
    `run_pretraining.py`.
    """
    output = model(**torch_inputs(batch))
    positions = torch.from_numpy(batch["masked_lm_positions"]).long()
    weights = torch.from_numpy(batch["masked_lm_weights"])
    row = torch.arange(len(positions))[:, None].expand_as(positions)
    logits = output.prediction_logits[row, positions]
    labels = torch.from_numpy(batch["masked_lm_ids"]).long()
    nll = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none"
    )
    following = torch.from_numpy(batch["next_sentence_labels"][:, 0]).long()
    nsp = torch.nn.functional.cross_entropy(output.seq_relationship_logits, following)
    return (weights.flatten() * nll).sum() / (weights.sum() + 1e-5) + nsp


def stored(directory: Path) -> dict[str, np.ndarray]:
    """Returns the tensors in a directory's model.safetensors."""
    return safetensors.numpy.load_file(directory / "model.safetensors")
