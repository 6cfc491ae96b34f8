"""DeBERTaV3's files: the SentencePiece model, and the pair of networks of its pretraining."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from tokenizers import AddedToken
from torch import nn
from transformers import DebertaV2Config, DebertaV2Model

from bert_jax.encoders.build import encoder_builder
from bert_jax.model.section import Execution
from bert_jax.objectives import electra
from bert_jax.objectives.registry import make_objective
from bert_jax.objectives.sections import ElectraObjectiveSection
from bert_jax.pipelines.python_docs import write_python_docs
from bert_jax.runs.open_checkpoints import read_checkpoints
from bert_jax.runs.run_directory import open_run
from bert_jax.task import DELTAS, GENERATOR
from bert_jax.text import load_tokenizer
from bert_jax.train.state import define_model
from tests.interop.hf_checkpoints import (
    DEBERTA_V3,
    hf_config,
    hf_model,
    stored,
    under_their_names,
)
from tests.model.parts import model_of
from tests.project import ok, one_phase, refused, says, write_config
from tests.support import loss_of, relative_error, small_batch

pytestmark = pytest.mark.slow

ROWS, WEIGHT = 700, 10.0
MASK = "[MASK]"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("docs")
    write_python_docs(directory)
    lines = "\n".join(file.read_text("utf-8") for file in sorted(directory.glob("*.txt")))
    return [line for line in lines.splitlines() if line.strip()][:4000]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, text: list[str]) -> Path:
    """A directory with a SentencePiece model whose first pieces are those of DeBERTaV3's."""
    root = tmp_path_factory.mktemp("tokenizer")
    (root / "text").write_text("\n".join(text[:2000]), encoding="utf-8")
    first = " ".join(
        f"--{name}_id={at} --{name}_piece={piece}"
        for at, (name, piece) in enumerate(
            [("pad", "[PAD]"), ("bos", "[CLS]"), ("eos", "[SEP]"), ("unk", "[UNK]")]
        )
    )
    sentencepiece.SentencePieceTrainer.Train(
        f"--input={root}/text --model_prefix={root}/spm --vocab_size=900 {first} "
        "--user_defined_symbols=£,€ --model_type=unigram --minloglevel=2"
    )
    (root / "config.json").write_text('{"model_type": "deberta-v2"}')
    return root


def theirs(directory: Path, **settings: Any) -> Any:
    """Returns `DebertaV2Tokenizer`, from what transformers reads of a SentencePiece model."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spm.model"))
    pieces = [(model.id_to_piece(at), model.get_score(at)) for at in range(len(model))]
    symbols = [
        AddedToken(piece, normalized=False, special=model.is_control(at))
        for at, (piece, score) in enumerate(pieces)
        if score == 0.0 and not model.is_unknown(at)
    ]
    return transformers.DebertaV2Tokenizer(
        vocab=pieces, additional_special_tokens=symbols, unk_id=model.unk_id(), **settings
    )


@pytest.mark.parametrize(
    "settings", [{"do_lower_case": False}, {"do_lower_case": True, "split_by_punct": True}]
)
def test_ids_of_a_sentencepiece_model_equal_transformers(
    directory: Path, tmp_path: Path, text: list[str], settings: dict[str, bool]
) -> None:
    source = shutil.copytree(directory, tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps(settings | {"vocab_type": "spm"}))
    ours, other = load_tokenizer(source), theirs(directory, **settings)
    assert ours.special == (0, 3, 1, 2, 900)
    assert ours.vocab_size == len(other) == 901
    odd = ["  two\n\tlines  and ", "ﬁ ½ cafe\u0301 £5 東京 \u00a0x", "(a-b) U.S.A. é", "Ünï €"]
    lines = [*odd, *text[2000:2400], f"{text[1]}\n{text[2]}"]
    expected = other(lines, add_special_tokens=False).input_ids
    assert [list(ours.encode(line)) for line in lines] == expected

    other.save_pretrained(tmp_path / "saved")  # a tokenizer.json and the settings of the class
    again = load_tokenizer(tmp_path / "saved")
    assert [list(again.encode(line)) for line in lines] == expected
    ours.save(tmp_path / "run")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    assert loaded(lines, add_special_tokens=False).input_ids == expected
    assert (loaded.mask_token_id, loaded.pad_token_id) == (900, 0)


class LmHead(nn.Module):
    """Transcription of `BertLMPredictionHead` of Microsoft's DeBERTa, `bert.py`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, width), nn.LayerNorm(width, 1e-7)
        self.bias = nn.Parameter(torch.randn(ROWS))

    def forward(self, states: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(nn.functional.gelu(self.dense(states))) @ table.t() + self.bias


class MaskHead(nn.Module):
    """Transcription of `LMMaskPredictionHead`, `replaced_token_detection_model.py`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, width), nn.LayerNorm(width, 1e-7)
        self.classifier = nn.Linear(width, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        summed = self.LayerNorm(states[:, 0, :].unsqueeze(-2) + states)
        return self.classifier(nn.functional.gelu(self.dense(summed))).squeeze(-1)


class Network(nn.Module):
    """A network of DeBERTaV3's pretraining, with the names of its files."""

    def __init__(self, config: DebertaV2Config, *, seed: int) -> None:
        super().__init__()
        self.deberta = hf_model(DebertaV2Model, config, seed=seed)
        self.lm_predictions = nn.ModuleDict({"lm_head": LmHead(config.hidden_size)})
        self.mask_predictions = MaskHead(config.hidden_size)
        size = config.max_position_embeddings, config.hidden_size
        self.positions = nn.Parameter(torch.randn(size))

    def decoded(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Transcription of `EnhancedMaskDecoder.emd_context_layer`, `masked_language_model.py`."""
        found = self.deberta(ids, attention_mask=mask, output_hidden_states=True)
        encoder, entering = self.deberta.encoder, found.hidden_states[-2]
        queries = entering + self.positions[: ids.shape[1]]
        for _ in range(2):
            queries = encoder.layer[-1](
                entering,
                encoder.get_attention_mask(mask),
                query_states=queries,
                relative_pos=encoder.get_rel_pos(entering),
                rel_embeddings=encoder.get_rel_embedding(),
            )[0]
        return queries


def network(*, seed: int) -> Network:
    values = {**DEBERTA_V3, "vocab_size": ROWS, "num_hidden_layers": 2}
    return Network(hf_config(DebertaV2Config, **values), seed=seed)


def release(directory: Path, tokenizer: Path) -> tuple[Network, Network]:
    """Writes a model and its generator as Microsoft does. Returns both."""
    model, generator = network(seed=1), network(seed=2)
    load_tokenizer(tokenizer).save(directory)
    for each, config, weights in (
        (model, "config.json", "pytorch_model.bin"),
        (generator, "generator_config.json", "pytorch_model.generator.bin"),
    ):
        values = each.deberta.config.to_dict()
        del values["architectures"]
        (directory / config).write_text(json.dumps(values))
        tensors = {**each.state_dict()}
        tensors["deberta.embeddings.position_embeddings.weight"] = tensors.pop("positions")
        if each is generator:
            tensors = {name: x for name, x in tensors.items() if "mask_predictions" not in name}
        torch.save(tensors, directory / weights)
    return model, generator


def raw_params(run_dir: Path, task: Any) -> Any:
    """Returns all parameters of a run's last checkpoint, with the generator and deltas."""
    definition = define_model(task.build)
    return read_checkpoints(
        open_run(run_dir).directory,
        lambda found: jax.device_get(found.restore_params(definition.params, step=1)),
    )


def test_pretraining_continues_from_the_released_pair(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step without learning saves the pair. Its loss is that of Microsoft's code."""
    source = tmp_path / "released"
    model, generator = release(source, project / "tokenizer")
    assert "with the generator of its pretraining (2 layers" in ok("import", source, tmp_path / "i")
    objective = {
        "kind": "electra",
        "embedding_sharing": "gradient_disentangled",
        "generator": {"num_hidden_layers": 2, "architecture": {"enhanced_mask_decoder": True}},
        "weight": WEIGHT,
    }
    values = one_phase(project, steps=1, evaluation=None, checkpoint={"every": 1})
    values["optimizer"]["warmup_steps"] = 1  # the first step has the learning rate 0
    values |= {"objective": objective, "run_dir": str(tmp_path / "run")}
    values["model"] = {"kind": "deberta", "execution": {"dtype": "float32"}}
    values["train"]["phases"][0]["seq_length"] = 40
    said = ok("pretrain", write_config(tmp_path / "a.yaml", values), "--init-from", source)
    assert "randomly initialized" not in said
    other_heads = {**objective, "generator": {**objective["generator"], "num_attention_heads": 1}}
    changed = values | {"objective": other_heads, "run_dir": str(tmp_path / "other")}
    said = ok("pretrain", write_config(tmp_path / "b.yaml", changed), "--init-from", tmp_path / "i")
    assert "randomly initialized: the deltas of embeddings, the generator" in said

    run = open_run(tmp_path / "run")
    task: Any = make_objective(
        ElectraObjectiveSection.model_validate(objective),
        architecture=run.architecture.with_dropout(0.0),
        execution=Execution(dtype="float32"),
        tokenizer=run.tokenizer,
    )
    params = raw_params(tmp_path / "run", task)
    tables = [
        each.deberta.embeddings.word_embeddings.weight.detach().numpy()
        for each in (generator, model)
    ]
    words = params["encoder"]["embeddings"]["word"][:ROWS]
    delta = params[DELTAS]["encoder"]["embeddings"]["word"][:ROWS]
    np.testing.assert_array_equal(words, tables[0])
    np.testing.assert_array_equal(delta, tables[1] - tables[0])

    batch = small_batch(rows=4, vocab=ROWS)
    rng, predictions = np.random.default_rng(1), batch["masked_lm_ids"].shape[1]
    places = np.stack([rng.permutation(8)[:predictions] for _ in range(4)])
    batch["masked_lm_positions"] = places.astype(np.int32)
    drawn = rng.integers(5, ROWS, (4, predictions)).astype(np.int32)
    drawn[:, 0] = batch["masked_lm_ids"][:, 0]
    monkeypatch.setattr(electra, "drawn", lambda logits, key: jnp.asarray(drawn))
    compute = jax.jit(jax.value_and_grad(lambda p, b: loss_of(task, model_of(task, p), b)[0]))
    loss, slopes = jax.device_get(compute(params, batch))

    with torch.no_grad():  # what both losses see
        model.deberta.embeddings.word_embeddings.weight.copy_(torch.tensor(words + delta))
    whole = their_loss(model, generator, batch, drawn)
    assert float(loss) == pytest.approx(whole.item(), rel=1e-5)
    of_word = (
        slopes[DELTAS]["encoder"]["embeddings"]["word"],
        slopes["encoder"]["embeddings"]["word"],
    )
    for each, ours, architecture, heads, word in (
        (model, slopes, task.architecture, task.heads, of_word[0]),
        (generator, slopes[GENERATOR], task.generator, electra.GENERATOR_HEADS, of_word[1]),
    ):
        tables = {**ours["encoder"].get("embeddings", {}), "word": word}
        whole = {**ours, "encoder": {**ours["encoder"], "embeddings": tables}}
        parts = {part: whole[part] for part in parts_of(architecture, heads)}
        found = under_their_names(parts, architecture, heads)
        trained = {name: x.grad for name, x in each.named_parameters() if x.grad is not None}
        assert len(found) == len(trained)
        for name, gradient in found.items():
            theirs = trained[microsofts_name(name)].numpy()
            assert relative_error(gradient, theirs) < 1e-4, name


def parts_of(architecture: Any, heads: Any) -> Any:
    """Returns the names of a model's parts."""
    return define_model(encoder_builder(architecture, Execution(), heads)).params.keys()


def microsofts_name(name: str) -> str:
    """Returns the name of a tensor in the files of pretraining, from transformers' name."""
    for ours, theirs in (
        ("cls.predictions.transform.", "lm_predictions.lm_head."),
        ("cls.predictions.", "lm_predictions.lm_head."),
        ("deberta.embeddings.position_embeddings.weight", "positions"),
    ):
        name = name.replace(ours, theirs)
    return name


def their_loss(
    model: Network, generator: Network, batch: dict[str, np.ndarray], drawn: np.ndarray
) -> torch.Tensor:
    """Transcription of `RTDModel` of Microsoft's DeBERTa, `rtd_task.py`, after the draws."""
    ids, places, labels = (
        torch.tensor(batch[name]).long()
        for name in ("input_ids", "masked_lm_positions", "masked_lm_ids")
    )
    weights, mask = torch.tensor(batch["masked_lm_weights"]), torch.tensor(batch["segment_ids"])
    states = generator.decoded(ids, mask)
    chosen = states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
    table = generator.deberta.embeddings.word_embeddings.weight
    logits = generator.lm_predictions["lm_head"](chosen, table)
    nll = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    seen, replaced = ids.clone(), torch.zeros(ids.shape)
    for row, slot in torch.nonzero(weights).tolist():
        seen[row, places[row, slot]] = int(drawn[row, slot])
        replaced[row, places[row, slot]] = float(drawn[row, slot] != labels[row, slot])
    found = model.mask_predictions(model.deberta(seen, attention_mask=mask).last_hidden_state)
    bce = nn.functional.binary_cross_entropy_with_logits(found, replaced, reduction="none")
    whole = (nll * weights).sum() / weights.sum() + WEIGHT * (bce * mask).sum() / mask.sum()
    whole.backward()
    return whole


@pytest.mark.parametrize(
    ("name", "found"),
    [("conv_kernel_size", 3), ("relative_attention", False), ("attention_head_size", 8)],
)
def test_other_parts_are_refused(tmp_path: Path, project: Path, name: str, found: Any) -> None:
    source = tmp_path / "source"
    release(source, project / "tokenizer")
    values = json.loads((source / "config.json").read_text()) | {name: found}
    (source / "config.json").write_text(json.dumps(values))
    error = refused("import", source, tmp_path / "run")
    says(error, key="deberta.part", place=f"{source / 'config.json'}: {name}", found=found)


def test_an_export_of_the_released_model_has_its_bytes(tmp_path: Path, project: Path) -> None:
    model, _ = release(tmp_path / "released", project / "tokenizer")
    ok("import", tmp_path / "released", tmp_path / "run")
    ok("export", tmp_path / "run", tmp_path / "out")
    written, expected = stored(tmp_path / "out"), model.state_dict()
    for name in (name for name in written if name.startswith("deberta.")):
        np.testing.assert_array_equal(written[name], expected[name].numpy())
    loaded = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(5, 25)[None]
    states = model.deberta(ids).last_hidden_state
    table = model.deberta.embeddings.word_embeddings.weight
    wanted = model.lm_predictions["lm_head"](states, table).detach().numpy()
    np.testing.assert_allclose(loaded(ids).logits.detach().numpy(), wanted, atol=1e-5)


def test_a_file_with_two_mlm_heads_is_refused(tmp_path: Path, project: Path) -> None:
    source = tmp_path / "released"
    release(source, project / "tokenizer")
    tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
    tensors["cls.predictions.bias"] = tensors["lm_predictions.lm_head.bias"]
    torch.save(tensors, source / "pytorch_model.bin")
    error = refused("import", source, tmp_path / "run")
    names = ["lm_predictions.lm_head.bias", "cls.predictions.bias"]
    says(error, key="tensor.two_names", place=source / "pytorch_model.bin", names=names)
