"""The resolved `attention`, `norm`, `loss` and `ffn`, and when `fused` or `cudnn` is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.encoders.kernel_choice import Choice, Part, choose, resolve_execution
from bert_jax.encoders.modernbert.section import ModernBertSection
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from tests.project import refuses
from tests.support import small_architecture, small_encoder

# All kernels support this model.
FITTING = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 512}
MODERNBERT = ModernBertSection(size="base").resolve(vocab_size=50_368)
ROBERTA = small_encoder("roberta", **FITTING)
PARTS: tuple[Part, ...] = ("attention", "norm", "loss", "ffn")


def chosen(
    part: Part,
    setting: str = "auto",
    *,
    kind: str = "TPU v5 lite",
    capability: str = "",
    longest: int = 128,
    tensor: int = 1,
    dtype: str = "bfloat16",
    architecture: EncoderArchitecture | None = None,
    **changes: Any,
) -> Choice:
    """Returns the resolved value of a setting on a kind of chip."""
    platform = {"cpu": "cpu", "TPU": "tpu"}.get(kind.split()[0], "gpu")
    device = SimpleNamespace(device_kind=kind, platform=platform)
    if capability:  # of a GPU
        device.compute_capability = capability
    return choose(
        part,
        Execution.model_validate({part: setting, "dtype": dtype}),
        device,
        architecture=architecture or small_architecture(**FITTING | changes),
        mesh=make_mesh(MeshSection(tensor=tensor)),
        longest=longest,
    )


@pytest.mark.parametrize("part", PARTS)
def test_auto_is_a_pallas_kernel_only_on_chips_with_kernels(part: Part) -> None:
    for kind in ("TPU v4", "TPU v5 lite", "TPU v6 lite"):
        assert chosen(part, kind=kind) == ("fused", f"one kernel on {kind}")
        assert chosen(part, "xla", kind=kind).name == "xla"
    for kind in ("TPU v3", "Tesla V100-SXM2-16GB", "cpu"):
        assert chosen(part, kind=kind) == ("xla", f"no kernel for {kind}")
    with refuses("model.fused_device", place=f"model.execution.{part}", found="TPU v3"):
        chosen(part, "fused", kind="TPU v3")
    assert chosen(part, "fused", kind="cpu").name == "fused"  # interpreted
    assert chosen(part, architecture=ROBERTA).name == "fused"


@pytest.mark.parametrize(
    ("part", "changes", "found", "allowed"),
    [
        ("attention", {"longest": 4096}, "rows of 4096 tokens", "up to 2048 "),
        (
            *("attention", {"hidden_size": 576, "num_attention_heads": 6, "longest": 512}),
            *("rows of 512 tokens", "up to 256 "),
        ),
        (
            *("attention", {"hidden_size": 1600, "num_attention_heads": 8}),
            *("8 heads of 200 columns on a device", "fewer or narrower heads"),
        ),
        ("norm", {"hidden_size": 312}, "a hidden size of 312", "multiples of 128 up to "),
        ("norm", {"hidden_size": 3840}, "a hidden size of 3840", "multiples of 128 up to "),
        ("loss", {"hidden_size": 4092}, "a hidden size of 4092 in bfloat16", "up to 2304"),
        (
            *("loss", {"hidden_size": 3072, "dtype": "float32"}),
            *("a hidden size of 3072 in float32", "up to 1280"),
        ),
        ("ffn", {"hidden_act": "relu"}, "hidden_act: relu", "gelu_tanh or gelu_erf"),
        ("ffn", {"dtype": "float32"}, "dtype: float32", "bfloat16"),
        (
            *("ffn", {"intermediate_size": 128, "tensor": 2}),
            *("an FFN matrix of 768 x 64 on a device", "multiples of 128"),
        ),
    ],
)
def test_unsupported_models_use_xla_and_refuse_fused(
    part: Part, changes: dict[str, Any], found: str, allowed: str
) -> None:
    sizes = {"vocab_size": 30522, **changes}
    assert chosen(part, **sizes).name == "xla"
    place = f"model.execution.{part}"
    with refuses("model.kernel_limit", place=place, kernel="fused", found=found) as caught:
        chosen(part, "fused", **sizes)
    assert f", allowed: {allowed}" in str(caught.value)


@pytest.mark.parametrize(
    ("part", "changes", "found", "allowed"),
    [
        ("attention", {"attention_dropout": 0.1}, "attention_dropout: 0.1", "0"),
        ("norm", {"hidden_size": 312}, "a hidden size of 312", "multiples of 128 up to "),
        ("attention", {"window": 288}, "a window of 288 tokens", "multiples of 32 up to 256"),
        ("ffn", {"hidden_size": 312}, "a hidden size of 312", "multiples of 128 up to "),
        ("ffn", {"hidden_act": "gelu_tanh"}, "hidden_act: gelu_tanh", "gelu_erf"),
        ("ffn", {"mlp_dropout": 0.1}, "mlp_dropout: 0.1", "0"),
    ],
)
def test_modernberts_kernels_and_their_limits(
    part: Part, changes: dict[str, Any], found: str, allowed: str
) -> None:
    assert chosen(part, longest=8192, architecture=MODERNBERT).name == "fused"
    changed = MODERNBERT.model_copy(update=changes)
    assert chosen(part, architecture=changed).name == "xla"
    with refuses("model.kernel_limit", found=found) as caught:
        chosen(part, "fused", architecture=changed)
    assert f", allowed: {allowed}" in str(caught.value)


WITHOUT_DROPOUT: dict[str, Any] = {"attention_probs_dropout_prob": 0.0}
GPU: dict[str, Any] = {"kind": "NVIDIA H100 80GB HBM3", "capability": "9.0"}


def test_auto_is_cudnn_on_nvidias_gpus_without_dropout_of_attention() -> None:
    for kind, capability in (("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA B200", "10.0")):
        device = {"kind": kind, "capability": capability}
        expected = "cudnn", f"cuDNN's kernel on {kind}"
        assert chosen("attention", **device, **WITHOUT_DROPOUT) == expected
        assert chosen("attention", architecture=MODERNBERT, longest=8192, **device) == expected
        assert chosen("attention", "xla", **device, **WITHOUT_DROPOUT).name == "xla"
        for part in ("norm", "loss", "ffn"):
            assert chosen(part, **device, **WITHOUT_DROPOUT) == ("xla", f"no kernel for {kind}")
    for kind, capability in (("Tesla T4", "7.5"), ("AMD Instinct MI300X", "gfx942")):
        device = {"kind": kind, "capability": capability}
        assert chosen("attention", **device, **WITHOUT_DROPOUT).name == "xla"
        with refuses("model.cudnn_device", place="model.execution.attention", found=kind):
            chosen("attention", "cudnn", **device, **WITHOUT_DROPOUT)
    for kind in ("cpu", "TPU v3", "TPU v5 lite"):
        assert chosen("attention", kind=kind, **WITHOUT_DROPOUT).name != "cudnn"
        with refuses("model.cudnn_device", place="model.execution.attention", found=kind):
            chosen("attention", "cudnn", kind=kind, **WITHOUT_DROPOUT)


@pytest.mark.parametrize(
    ("changes", "found", "allowed"),
    [
        ({}, "attention_probs_dropout_prob: 0.1", "0"),
        (
            {"architecture": MODERNBERT.with_dropout(0.1)},
            *("attention_dropout: 0.1", "0"),
        ),
        ({"dtype": "float32", **WITHOUT_DROPOUT}, "dtype: float32", "bfloat16"),
        (
            {"num_attention_heads": 4, **WITHOUT_DROPOUT},
            *("heads of 192 columns", "multiples of 8 up to 128"),
        ),
    ],
)
def test_unsupported_models_use_xla_on_a_gpu_and_refuse_cudnn(
    changes: dict[str, Any], found: str, allowed: str
) -> None:
    assert chosen("attention", **GPU, **changes) == ("xla", f"{found}; cuDNN supports {allowed}")
    values = {"kernel": "cudnn", "found": found, "allowed": allowed}
    with refuses("model.kernel_limit", place="model.execution.attention", **values):
        chosen("attention", "cudnn", **GPU, **changes)


def test_a_run_with_cudnn_is_read_on_other_devices() -> None:
    execution = Execution(attention="cudnn", norm="fused", loss="xla").elsewhere()
    assert (execution.attention, execution.norm, execution.loss) == ("auto", "auto", "xla")


def test_v4_has_no_room_for_long_rows_of_modernbert() -> None:
    for kind, longest, name in (
        ("TPU v4", 1024, "fused"),
        ("TPU v4", 1025, "xla"),
        ("TPU v5", 8192, "fused"),
        ("TPU v6 lite", 8192, "fused"),
        ("TPU v6 lite", 8193, "xla"),
    ):
        sizes = {"kind": kind, "longest": longest, "architecture": MODERNBERT}
        assert chosen("attention", **sizes).name == name
        assert chosen("ffn", **sizes).name == "fused"
    with refuses("model.kernel_limit", found="rows of 8192 tokens", allowed="up to 1024"):
        chosen("attention", "fused", kind="TPU v4", longest=8192, architecture=MODERNBERT)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 2304), ("float32", 1280)])
def test_the_widest_model_of_the_fused_loss(dtype: str, most: int) -> None:
    assert (
        chosen("loss", dtype=dtype, hidden_size=most, num_attention_heads=16, vocab_size=30522).name
        == "fused"
    )


@pytest.mark.parametrize(
    ("columns", "dtype", "tensor", "most"),
    [
        (64, "bfloat16", 1, 2048),
        (64, "bfloat16", 2, 2048),
        (64, "float32", 1, 512),
        (64, "bfloat16", 4, 512),  # the three heads of a device form one block
        (64, "float32", 4, 256),
        (32, "bfloat16", 1, 512),
        (32, "float32", 1, 256),
        (80, "bfloat16", 1, 128),  # the twelve heads of a device form one block
    ],
)
def test_the_longest_row_depends_on_the_devices_heads(
    columns: int, dtype: str, tensor: int, most: int
) -> None:
    model: dict[str, Any] = {"hidden_size": 12 * columns, "dtype": dtype, "tensor": tensor}
    assert chosen("attention", longest=most, **model).name == "fused"
    found = chosen("attention", longest=most + 1, **model)
    assert found.name == "xla"
    assert f" {most} " in found.why


def test_without_a_tpu_auto_is_xla_and_fused_is_kept() -> None:
    model, mesh = small_architecture(**FITTING), make_mesh(MeshSection())
    for asked, expected in (("auto", "xla"), ("fused", "fused")):
        execution = Execution.model_validate(dict.fromkeys(PARTS, asked))
        found = resolve_execution(execution, architecture=model, mesh=mesh, longest=128)
        assert {getattr(found, part) for part in PARTS} == {expected}
