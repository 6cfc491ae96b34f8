"""ELECTRA's loss against an independent computation, its metrics, and its settings."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertModel,
)

from bert_jax.interop.hf_config import format_of
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives import electra as replaced_token_detection
from bert_jax.objectives.electra import (
    GENERATOR_HEADS,
    ReplacedTokenDetection,
    corrupted,
)
from bert_jax.objectives.registry import make_objective
from bert_jax.objectives.sections import ElectraObjectiveSection, GeneratorSection
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.task import DELTAS, GENERATOR, TRAINING_PARTS
from bert_jax.text import SpecialIds
from bert_jax.train.checkpointer import with_deltas
from bert_jax.train.metrics import to_host
from bert_jax.train.state import define_model, named
from bert_jax.workflows.initial_generator import restorable, with_generator
from tests.interop.hf_checkpoints import under_their_names
from tests.model.parts import fresh_params, model_of
from tests.project import refuses
from tests.support import loss_of, relative_error, small_batch, small_encoder

TABLES = ("word", "position", "type")
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
SPECIAL_IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
NO_HEADS = HeadsSection(pooler=False, mlm=False, next_sentence=False)
# Names of the embedding tables in Hugging Face's networks, by encoder and by our names.
THEIR_TABLES = {
    "electra": {
        name: f"electra.embeddings.{theirs}_embeddings.weight"
        for name, theirs in zip(TABLES, ("word", "position", "token_type"), strict=True)
    },
    "modernbert": {"word": "model.embeddings.tok_embeddings.weight"},
}


def electra(encoder: str = "electra", **settings: Any) -> ReplacedTokenDetection:
    """Returns the objective for a small model. ELECTRA's embeddings have 48 columns."""
    changes = {"window": 8, "num_hidden_layers": 4} if encoder == "modernbert" else {}
    values = {"generator": SMALL if encoder == "electra" else {}, **settings}
    made = make_objective(
        ElectraObjectiveSection.model_validate(values),
        architecture=small_encoder(encoder, **changes).with_dropout(0.0),
        execution=Execution(dtype="float32"),
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
    )
    assert isinstance(made, ReplacedTokenDetection)
    return made


class ModernBertDetector(torch.nn.Module):
    """ModernBERT with a head for replaced tokens, which Hugging Face lacks."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.model, width = ModernBertModel(config), config.hidden_size
        self.transform, self.classifier = torch.nn.Linear(width, width), torch.nn.Linear(width, 1)

    def forward(self, ids: Any, **inputs: Any) -> Any:
        states = self.model(ids, **inputs).last_hidden_state
        logits = self.classifier(torch.nn.functional.gelu(self.transform(states)))
        return logits[..., 0]


def their_names(params: Any, architecture: Any, heads: Any) -> dict[str, np.ndarray]:
    """Converts parameters or gradients to the names of Hugging Face or `ModernBertDetector`."""
    if architecture.kind == "electra" or heads.mlm:
        return under_their_names(params, architecture, heads)
    head = {
        f"{name}.{theirs}": np.asarray(value[ours]).T
        for name, value in params["replaced_tokens"].items()
        for ours, theirs in (("kernel", "weight"), ("bias", "bias"))
    }
    others = {part: params[part] for part in params if part != "replaced_tokens"}
    return under_their_names(others, architecture, NO_HEADS) | head


def torch_network(params: Any, architecture: Any, heads: Any) -> Any:
    """Returns a network of Hugging Face with our parameters."""
    if architecture.kind == "electra":
        kind = ElectraForMaskedLM if heads.mlm else ElectraForPreTraining
        config: Any = ElectraConfig(**architecture.model_dump() | {"hidden_act": "gelu"})
    else:
        kind = ModernBertForMaskedLM if heads.mlm else ModernBertDetector
        written = format_of("modernbert").config.written(architecture, SPECIAL_IDS)
        config = ModernBertConfig(**written, attn_implementation="eager")
    network = kind(config).eval()
    tensors = their_names(params, architecture, heads)
    state = {name: torch.tensor(np.array(value)) for name, value in tensors.items()}
    lacking, unknown = network.load_state_dict(state, strict=False)
    assert unknown == []
    assert set(lacking) <= {"generator_lm_head.weight", "decoder.weight"}  # tied
    if heads.mlm:
        network.tie_weights()
    return network


def of_encoder(params: Any) -> Any:
    """Returns the parameters among which are the embedding tables."""
    return params["encoder"].get("embeddings", params["encoder"])


@pytest.mark.parametrize(
    ("encoder", "sizes", "kernels"),
    [
        # The generator has one head of 64 columns, too narrow for the kernels of LayerNorm and FFN.
        (
            "electra",
            {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 256},
            {"attention_backward": 2, "norm_backward": 2, "gelu_product": 1},
        ),
        # Heads of 64 columns need a device with two of them, which the model has too.
        (
            "modernbert",
            {"hidden_size": 128, "num_attention_heads": 2, "window": 32},
            {"rotary_attention_backward": 2, "norm_backward": 2, "geglu_gradients": 2},
        ),
    ],
)
def test_the_generator_uses_the_kernels_that_support_its_sizes(
    encoder: str, sizes: dict[str, int], kernels: dict[str, int]
) -> None:
    task = make_objective(
        ElectraObjectiveSection(),
        architecture=small_encoder(encoder, num_hidden_layers=1, **sizes),
        execution=Execution(attention="fused", norm="fused", ffn="fused"),
        tokenizer=None,  # pyright: ignore[reportArgumentType] (only `features` needs one)
    )
    batch, key = jax.tree.map(jnp.asarray, small_batch(rows=2)), jax.random.key(0)

    def loss(params: Any) -> jax.Array:
        return loss_of(task, model_of(task, params), batch, dropout_key=key)[0]

    with jax.set_mesh(make_mesh(MeshSection(data=1), jax.devices()[:1])):
        program = str(jax.make_jaxpr(jax.grad(loss))(fresh_params(task)))
    # A program has each kernel twice: for TPUs and interpreted.
    assert {kernel: program.count(f"name={kernel}") / 2 for kernel in kernels} == kernels


@pytest.mark.parametrize(
    ("encoder", "sharing"),
    [
        ("electra", "shared"),
        ("electra", "gradient_disentangled"),
        ("modernbert", "gradient_disentangled"),
    ],
)
def test_loss_and_gradients_equal_the_papers_formula(
    monkeypatch: pytest.MonkeyPatch, encoder: str, sharing: str
) -> None:
    task = electra(encoder, weight=20.0, embedding_sharing=sharing)
    batch, tables = small_batch(rows=4), THEIR_TABLES[encoder]
    # Distinct positions in a row: `small_batch` may repeat one.
    predictions = batch["masked_lm_ids"].shape[1]
    rng = np.random.default_rng(1)
    places = [rng.permutation(8)[:predictions] for _ in range(4)]
    batch["masked_lm_positions"] = np.stack(places).astype(np.int32)
    drawn = rng.integers(5, 250, (4, predictions)).astype(np.int32)
    drawn[:, 0] = batch["masked_lm_ids"][:, 0]  # a piece that equals the original
    monkeypatch.setattr(replaced_token_detection, "drawn", lambda logits, key: jnp.asarray(drawn))
    noise = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + noise.normal(0, 0.1, leaf.shape).astype("f4"), fresh_params(task)
    )
    compute = jax.jit(
        jax.value_and_grad(lambda p, b: loss_of(task, model_of(task, p), b), has_aux=True)
    )
    (loss, metrics), gradient = jax.device_get(compute(params, batch))

    ours = with_deltas({part: params[part] for part in params if part != GENERATOR})
    theirs = jax.tree.map(lambda leaf: leaf, params[GENERATOR])
    for name in tables:
        of_encoder(theirs)[name] = of_encoder(params)[name]
    model = torch_network(ours, task.architecture, task.heads)
    generator = torch_network(theirs, task.generator, GENERATOR_HEADS)
    ids, places, labels = (
        torch.tensor(batch[name]).long()
        for name in ("input_ids", "masked_lm_positions", "masked_lm_ids")
    )
    weights, mask = torch.tensor(batch["masked_lm_weights"]), torch.tensor(batch["segment_ids"])
    inputs = {"attention_mask": mask}
    if encoder == "electra":
        inputs["token_type_ids"] = torch.tensor(batch["token_type_ids"])
    logits = generator(ids, **inputs).logits
    chosen = logits.gather(1, places[..., None].expand(-1, -1, logits.shape[-1]))
    nll = torch.nn.functional.cross_entropy(chosen.transpose(1, 2), labels, reduction="none")
    mlm = (nll * weights).sum() / weights.sum()
    seen, replaced = ids.clone(), torch.zeros(ids.shape)
    for row, slot in torch.nonzero(weights).tolist():
        seen[row, places[row, slot]] = int(drawn[row, slot])
        replaced[row, places[row, slot]] = float(drawn[row, slot] != labels[row, slot])
    found = model(seen, **inputs)
    found = found.logits if encoder == "electra" else found
    bce = torch.nn.functional.binary_cross_entropy_with_logits(found, replaced, reduction="none")
    whole = mlm + 20.0 * (bce * mask).sum() / mask.sum()
    whole.backward()

    assert float(loss) == pytest.approx(whole.item(), rel=1e-6)
    scores = task.score(to_host(metrics))
    assert scores["mlm_loss"] == pytest.approx(mlm.item(), rel=1e-6)
    real = (mask > 0).numpy()
    logits_found, labels_found = found.detach().numpy()[real], replaced.numpy()[real]
    area = roc_auc_score(labels_found, logits_found)
    assert scores["replaced_auc"] == pytest.approx(area, abs=1e-4)  # bins of logits
    hits = (logits_found > 0) & (labels_found > 0)
    assert scores["replaced_recall"] == pytest.approx(hits.sum() / labels_found.sum())
    assert scores["replaced_precision"] == pytest.approx(hits.sum() / (logits_found > 0).sum())
    # Hugging Face's networks do not share embeddings, so their gradients are summed here.
    expected = {name: leaf.grad.numpy() for name, leaf in model.named_parameters()}
    for name, key in tables.items():
        of_generator, of_model = generator.get_parameter(key).grad.numpy(), expected[key]
        if sharing == "shared":
            expected[key] = of_generator + of_model
        else:  # each table has the gradient of one loss
            expected[key] = of_generator
            of_delta = of_encoder(gradient[DELTAS])[name][: len(of_model)]
            assert relative_error(of_delta, of_model) < 1e-4
    trained = {part: gradient[part] for part in ours}
    for name, leaf in their_names(trained, task.architecture, task.heads).items():
        if "key.bias" not in name:  # softmax cancels this bias
            assert relative_error(leaf, expected[name]) < 1e-4, name


def names(encoder: str = "electra", **settings: Any) -> set[str]:
    return {name for name, _ in named(define_model(electra(encoder, **settings).build).params)}


def test_both_networks_share_the_embeddings_that_are_set() -> None:

    shared, apart = names(), names(embedding_sharing="none")
    assert apart - shared == {f"generator/encoder/embeddings/{name}" for name in TABLES}
    assert shared - apart == set()
    only_words = names(shared_embeddings=["word"])
    assert apart - only_words == {"generator/encoder/embeddings/word"}
    disentangled = names(embedding_sharing="gradient_disentangled", shared_embeddings=["word"])
    assert disentangled - only_words == {"deltas/encoder/embeddings/word"}


def test_the_generator_may_be_another_encoder() -> None:
    settings = {"embedding_sharing": "gradient_disentangled"}
    found = names("modernbert", generator={"kind": "bert"}, **settings)
    assert {name for name in found if "/word" in name} == {"deltas/encoder/word"} | {"encoder/word"}
    assert "generator/encoder/embeddings/position" in found
    narrow = {"kind": "electra", "size": 0.25, "architecture": {"hidden_act": "relu"}}
    task = electra("modernbert", generator=narrow)
    sizes = (task.generator.hidden_size, task.generator.embedding_width, task.generator.hidden_act)
    assert sizes == (16, 64, "relu")
    names("modernbert", generator=narrow)  # they share the words

    place = "objective.embedding_sharing"
    with refuses("electra.sharing_width", place=place, columns=[16, 64], use="none"):
        electra("modernbert", generator={"size": 0.25})
    electra("modernbert", generator={"size": 0.25}, embedding_sharing="none")
    place = "objective.shared_embeddings"
    with refuses("electra.shared_embeddings", place=place, found="type", allowed="word"):
        electra("modernbert", shared_embeddings=["type"])
    place = "objective.generator.architecture.window"
    with refuses("setting.value", place=place, found=1):
        electra("modernbert", generator={"architecture": {"window": 1}})
    place = "objective.generator.architecture.enhanced_mask_decoder"
    both = {"enhanced_mask_decoder": True, "position_embedding": "learned"}
    with refuses("deberta.mask_decoder", place=place, found="learned", use="none"):
        electra("deberta", generator={"architecture": both})
    place = "objective.generator.architecture.vocab_size"
    with refuses("electra.generator_vocab_size", place=place, found=64):
        electra("modernbert", generator={"architecture": {"vocab_size": 64}})
    place = "objective.generator.architecture.max_position_embeddings"
    short = electra("modernbert", generator={"architecture": {"max_position_embeddings": 8}})
    with refuses("electra.generator_positions", place=place, found=8, needed=16):
        short.features(seq_length=16, evaluation=False)
    with refuses("model.heads", place="objective.generator.num_attention_heads", found=3):
        electra(generator={"num_attention_heads": 3})


def test_disentangled_networks_start_with_equal_embeddings() -> None:
    task = electra(embedding_sharing="gradient_disentangled")
    deltas = [leaf for _, leaf in named(fresh_params(task)[DELTAS])]
    assert len(deltas) == len(TABLES)
    assert not any(leaf.any() for leaf in deltas)
    sinusoidal = small_encoder("electra", position_embedding="sinusoidal")
    changed = dataclasses.replace(task, architecture=sinusoidal, generator=sinusoidal)
    assert fresh_params(changed)[DELTAS]["encoder"]["embeddings"].keys() == {"word", "type"}


def test_a_masked_token_is_replaced_only_where_there_is_a_prediction() -> None:
    batch = {
        "input_ids": jnp.array([[2, 4, 9, 4, 0]]),
        "masked_lm_positions": jnp.array([[1, 3, 0]]),
        "masked_lm_ids": jnp.array([[7, 8, 0]]),
        "masked_lm_weights": jnp.array([[1.0, 1.0, 0.0]]),
    }
    found = corrupted(batch, jnp.array([[6, 8, 5]]))
    assert found.input_ids.tolist() == [[2, 6, 9, 8, 0]]
    assert found.is_replaced.tolist() == [[0, 1, 0, 0, 0]]  # the second piece is the original


def test_the_generators_sizes_are_a_share_of_the_models_unless_given() -> None:
    model = small_encoder("electra")  # 64 columns, 8 heads, FFN of 128
    found = GeneratorSection(size=0.25, num_hidden_layers=1).of_model(model)
    sizes = (found.hidden_size, found.num_attention_heads, found.intermediate_size)
    assert (*sizes, found.num_hidden_layers) == (16, 2, 32, 1)
    assert found.embedding_width == model.embedding_width
    as_wide = GeneratorSection().of_model(small_encoder("modernbert", num_hidden_layers=4))
    assert as_wide == small_encoder("modernbert")  # of two layers


SHARINGS = ("shared", "gradient_disentangled", "none")


@pytest.mark.parametrize("old", SHARINGS)
@pytest.mark.parametrize("new", SHARINGS)
def test_a_run_starts_with_the_tables_of_both_networks(old: str, new: str) -> None:
    """Of another run, whatever the two runs share."""
    task, other = electra(embedding_sharing=new), electra(embedding_sharing=old)
    noise = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + noise.normal(0, 1, leaf.shape).astype("f4"), fresh_params(other)
    )
    abstract = define_model(task.build).params
    assert not restorable(params, define_model(electra(generator={"size": 0.5}).build).params)
    assert restorable(params, abstract).keys() == {
        part for part in params if part in TRAINING_PARTS
    }
    if new == "shared" and old != "shared":
        with refuses("init_from.shared_embeddings", place="here", expected="word"):
            with_generator(params, abstract, place="here")
        return
    found = with_generator(params, abstract, place="here")
    assert jax.tree.structure(found) == jax.tree.structure(abstract)

    def tables(params: Any) -> list[Any]:
        model = with_deltas({part: params[part] for part in params if part != GENERATOR})
        own = params[GENERATOR]["encoder"].get("embeddings", {})
        base = {**params["encoder"]["embeddings"], **own}
        return [model["encoder"]["embeddings"], {name: base[name] for name in TABLES}]

    for before, after in zip(tables(params), tables(found), strict=True):
        for name in TABLES:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[GENERATOR]["mlm"]["bias"], params[GENERATOR]["mlm"]["bias"])
