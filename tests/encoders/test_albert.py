"""ALBERT's shared layers: an equal model without sharing, parameter groups, sizes, refusals."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.registry import read_model_section
from bert_jax.errors import UserError
from bert_jax.interop.hf_config import read_config
from bert_jax.interop.tensor_conversion import definition_of
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.optim.finetuning import frozen_parameters, unit_of_parameters
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.runs.teacher import student_params
from bert_jax.train.state import ModelDefinition, define_model
from tests.interop.hf_checkpoints import small_config
from tests.project import refuses, says
from tests.support import relative_error, small_encoder
from tests.train.harness import QUICK

pytestmark = pytest.mark.slow

GROUP_OF_LAYERS = np.array([0, 0, 0, 1, 1])  # 5 layers in 2 groups
LAYERS = ("encoder", "layers")
HEADS = HeadsSection(mlm=False, next_sentence=False, pooler=False)


def albert(*, groups: int, share: str = "all") -> EncoderArchitecture:
    return small_encoder("albert", num_hidden_layers=5, num_hidden_groups=groups, share=share)


def definition(groups: int, share: str = "all") -> ModelDefinition:
    return definition_of(albert(groups=groups, share=share), HEADS)


def is_shared(name: tuple[str, ...], share: str) -> bool:
    """Returns whether the layers of a group share a parameter: ``encoder/layers/output/kernel``."""
    of = "attention" if name[2].startswith("attention") else "ffn"
    return name[:2] == LAYERS and share in ("all", of)


@pytest.mark.parametrize(
    ("size", "millions"), [("base", 12), ("large", 18), ("xlarge", 60), ("xxlarge", 235)]
)
def test_the_sizes_have_the_papers_number_of_parameters(size: str, millions: int) -> None:
    section = read_model_section({"kind": "albert", "size": size}, source="")
    architecture = section.resolve(vocab_size=30_000)
    params = definition_of(architecture, HeadsSection()).params
    found = sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6
    assert found == pytest.approx(millions, rel=0.06)  # the paper's numbers are rounded up


@pytest.mark.parametrize(
    "share",
    ["all", *(pytest.param(part, marks=pytest.mark.chaos) for part in ("attention", "ffn"))],
)
def test_shared_layers_compute_what_equal_layers_compute(share: str) -> None:
    rng = np.random.default_rng(0)
    execution = Execution(dtype="float32", unroll=2)
    batch = {
        "input_ids": jnp.asarray(rng.integers(5, 250, (2, 12)), jnp.int32),
        "token_type_ids": jnp.zeros((2, 12), jnp.int32),
        "segment_ids": jnp.asarray(np.arange(12) < [[12], [7]], jnp.int32),
    }
    queries, key = jnp.array([[3, 0, 9], [6, 1, 1]]), jax.random.key(1)

    def results(groups: int, params: Any) -> Any:
        architecture = albert(groups=groups, share=share).with_dropout(0.3)
        build = encoder_builder(architecture, execution, HEADS)

        def compute(params: Any) -> Any:
            model: PostNormModel = nnx.merge(define_model(build).graphdef, params)
            states = model.hidden(batch, queries_BQ=queries, dropout_key=key)
            every = model.encoder.every_layer(batch)
            loss = (states * weights).sum() + (every[2:] * weights[:, :1]).sum()
            return loss, (states, every, model.attention_maps(batch))

        lowered: Any = jax.jit(jax.value_and_grad(compute, has_aux=True)).lower(params)
        if groups == 2:  # no array has a shared kernel once per layer
            copies = {"attention": "<5x64x64x", "ffn": "<5x64x128x"}
            found = {part for part, shape in copies.items() if shape in lowered.as_text()}
            assert found == copies.keys() - ({share} if share != "all" else copies.keys())
        return lowered.compile(compiler_options=QUICK)(params)

    weights = jnp.asarray(rng.normal(size=(2, 3, 64)), jnp.float32)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.2, leaf.shape), jnp.float32),
        definition(2, share).params,
    )
    flat: dict[tuple[str, ...], Any] = flatten_dict(params)
    equal = {
        name: leaf[GROUP_OF_LAYERS] if is_shared(name, share) else leaf
        for name, leaf in flat.items()
    }
    ours, slopes = results(2, params)
    theirs, apart = results(5, unflatten_dict(equal))
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    expected_slopes: dict[tuple[str, ...], Any] = flatten_dict(apart)
    for name, slope in flatten_dict(slopes).items():
        expected = expected_slopes[name]
        if is_shared(name, share):
            expected = jnp.stack([expected[:3].sum(0), expected[3:].sum(0)])
        if name[-2:] != ("key", "bias"):  # softmax cancels this bias
            assert relative_error(slope, expected) < 1e-5, name


def test_a_shared_parameter_belongs_to_the_last_layer_that_uses_it() -> None:
    model = definition(2)
    units = unit_of_parameters(model.axes, groups=model.groups, depth=5)
    kernel = units["encoder"]["layers"]["output"]["kernel"]
    np.testing.assert_array_equal(kernel.ravel(), [3, 5])  # unit 1 is layer 0
    for freeze, frozen in (("layers.0-3", False), ("encoder", True)):
        section = FinetuneOptimizerSection(freeze=(freeze,))
        found = frozen_parameters(section, model.axes, groups=model.groups, depth=5)
        assert found["encoder"]["layers"]["output"]["kernel"] is frozen


def test_a_student_starts_from_the_groups_that_its_layers_use() -> None:
    params = {"encoder": {"layers": {"output": {"bias": np.array([[10.0], [20.0]])}}}}

    def start(student: int, layers: list[int]) -> list[float]:
        shape = jax.ShapeDtypeStruct((student, 1), np.float32)
        abstract = {"encoder": {"layers": {"output": {"bias": shape}}}}
        found = student_params(
            params,
            abstract,
            layers=layers,
            teacher=definition(2).groups,
            student=definition(student).groups,
            key="",
        )
        return found["encoder"]["layers"]["output"]["bias"].ravel().tolist()

    assert start(5, [0, 2, 2, 3, 4]) == [10, 10, 10, 20, 20]
    assert start(2, [0, 1, 3, 1, 2]) == [20, 10]  # the last layers of the groups: 3 and 2


def test_impossible_groups_are_refused(tmp_path: Path) -> None:
    values = {"kind": "albert", "size": "base", "architecture": {"num_hidden_groups": 13}}
    with refuses("albert.groups", found=13, layers=12):
        read_model_section(values, source="").resolve(vocab_size=100)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config("AlbertModel", inner_group_num=2).to_dict()))
    with pytest.raises(UserError) as caught:
        read_config(path)
    says(caught.value, key="albert.inner_groups", found=2)
    assert str(caught.value).startswith(f"{path}: inner_group_num: ")
