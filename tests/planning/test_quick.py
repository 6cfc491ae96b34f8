"""The quick form: what is estimated of a program whose code was not generated."""

import dataclasses
import functools
import importlib.metadata
import json
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import yaml
from click.testing import Result

from bert_jax.config import load_config
from bert_jax.parallel.accelerators import ACCELERATORS
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.planning import compiler
from bert_jax.planning.compilation import kernels_alone
from bert_jax.planning.compilation.compiler_files import read_scheduled
from bert_jax.planning.compilation.cycles import Cycles, count_cycles
from bert_jax.planning.compilation.execution import Program
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernel_schedule import KernelSchedule
from bert_jax.planning.compilation.kernels_alone import Kernel, as_called, kernels_of
from bert_jax.planning.compilation.op_cycles import features_of, fitted, with_estimates
from bert_jax.planning.compilation.step import STEP, CompiledStep, Memory
from bert_jax.planning.compilation.work import Work
from bert_jax.planning.planning import PlanSettings
from bert_jax.planning.request import CompileRequest
from bert_jax.section import need
from tests.planning.test_plan import CONFIG
from tests.project import invoke, refused

LAYERS = 12
V5E = ACCELERATORS["v5e"]
# A product and tanh of it, a copy of that, a number, and a kernel.
PROGRAM = """HloModule jit_step, is_scheduled=true

%fused (a: bf16[8192,768], b: bf16[768,3072]) -> bf16[8192,3072] {
  %a = bf16[8192,768]{1,0} parameter(0)
  %b = bf16[768,3072]{1,0} parameter(1)
  %dot.1 = f32[8192,3072]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %tanh.1 = bf16[8192,3072]{1,0} tanh(%dot.1)
}

ENTRY %main (a.1: bf16[8192,768], b.1: bf16[768,3072], n: u32[]) -> bf16[8192,3072] {
  %a.1 = bf16[8192,768]{1,0} parameter(0)
  %b.1 = bf16[768,3072]{1,0:T(8,128)S(1)} parameter(1)
  %n = u32[] parameter(2)
  %add.1 = u32[] add(%n, %n)
  %slice.1 = bf16[4096,768]{1,0} slice(%a.1), slice={[0:4096], [0:768]}
  %words = s32[2,16,6,2,512]{4,3,2,1,0} constant({...})
  %fusion.1 = bf16[8192,3072]{1,0} fusion(%a.1, %b.1), kind=kOutput, calls=%fused
  %attention_forward.2 = bf16[16] custom-call(%words), DECLARED
  ROOT %copy.1 = bf16[8192,3072]{0,1} copy(%fusion.1)
}
""".replace(
    "DECLARED",
    'custom_call_target="tpu_custom_call", '
    'backend_config={"custom_call_config":{"cost_estimate":{"flops":"200000000"}}}',
)


def schedule() -> KernelSchedule:
    """Of a kernel that waits for nothing."""
    return KernelSchedule(
        bundles=800, slots={"VALU": 400}, copied_bytes=1600, steps=8, unknown_loops=0
    )


def test_an_operation_takes_its_products_or_its_bytes_and_what_is_computed_of_them() -> None:
    module = parse_hlo(PROGRAM)
    found = {one.instruction.name: one for one in Program.of(module).executed}
    features = features_of(module, found["fusion.1"], V5E)
    per_cycle = 197e12 / 1.5e9
    assert features.products == pytest.approx(2 * 8192 * 768 * 3072 / per_cycle)
    assert features.hbm == pytest.approx(2 * 8192 * (768 + 3072) / V5E.bytes_per_cycle)
    assert features.on_chip == pytest.approx(2 * 768 * 3072 / V5E.bytes_per_cycle)
    registers = 8192 * 3072 / 1024
    assert (features.elementwise, features.transcendental) == (0, registers)
    assert features_of(module, found["copy.1"], V5E).moved == registers


def test_what_the_compiler_would_give_cycles_gets_them_and_nothing_else() -> None:
    module = with_estimates(parse_hlo(PROGRAM), V5E)
    program = Program.of(module)
    cycles = {one.instruction.name: one.instruction.cycles for one in program.executed}
    assert cycles["add.1"] is None
    assert cycles["slice.1"] is None  # copied beside the core's work
    assert cycles["attention_forward.2"] is None
    product = cycles["fusion.1"]
    assert product is not None
    # Never less than the matrix units need, and not twice that.
    least = 2 * 8192 * 768 * 3072 / (197e12 / 1.5e9)
    assert least < product < 2 * least
    own = as_called({"attention_forward.2": schedule()}, program, V5E)
    found = count_cycles(program, bytes_per_cycle=V5E.bytes_per_cycle, schedules=own)
    assert found.by_kind["matrix products"] == product
    assert found.scheduled == product + (cycles["copy.1"] or 0)
    call = own["attention_forward.2"]
    assert (call.bundles, call.slots, call.steps) == (800, {"VALU": 400}, 8)
    # Its products take longer, at the peak of the matrix units.
    assert call.products == round(2e8 / (197e12 / 1.5e9))
    assert call.cycles(bytes_per_cycle=1e9) == call.products
    # The words, and a result of 16 elements of two bytes.
    assert call.copied_bytes == 2 * 16 * 6 * 2 * 512 * 4 + 16 * 2


def test_every_generation_has_a_cost_model_or_one_like_it() -> None:
    module = parse_hlo(PROGRAM)
    for accelerator in ACCELERATORS.values():
        estimated = with_estimates(module, accelerator)
        assert estimated.computations["main"]["fusion.1"].cycles
    assert set(fitted().models) <= set(ACCELERATORS)


def test_memory_is_read_from_the_compilers_own_report() -> None:
    found = read_scheduled(
        "HloModule jit_step",
        "allocation 1: size 93978624, page 0, parameter 6, shape |f32[30592,768]| at "
        "ShapeIndex {}, maybe-live-out:\n value: <1 p @0> (size=93978624,offset=0)\n"
        "allocation 3: size 512, page 0, output shape is |(f32[])|, maybe-live-out:\n"
        "allocation 7: size 93978624, page 0, thread-local:\n"
        "allocation 492: size 467812864, page 0, preallocated-temp:\n"
        "allocation 495: size 117440512, color 1, page 0, preallocated-temp:\n",
    )
    assert found == ("HloModule jit_step", 467812864, 93978624 + 512 + 467812864)
    with pytest.raises(ValueError, match="no buffers"):
        read_scheduled("", "x")


def step(layers: int) -> CompiledStep:
    """Everything grows with the layers, from something of its own."""
    return CompiledStep(
        rows=256,
        useful_flops=1e9 + layers * 1e8,
        memory=Memory(
            parameters=1000 + 10 * layers,
            optimizer=2000 + 20 * layers,
            batch=7,
            temporaries=5000 + 300 * layers,
            program=50 + layers,
            peak=8000 + 331 * layers,
        ),
        cycles=Cycles(
            scheduled=700 + 60 * layers,
            by_bytes=30,
            in_kernels=100 * layers,
            by_kind={"matrix products": 700 + 60 * layers, "copies": 30, "custom": 100 * layers},
            kernels=(),
            uncounted={},
            unknown_loops=(),
        ),
        work=Work(
            product_flops=500 + 40 * layers, kernel_flops=3 * layers, hbm_bytes=900 + 8 * layers
        ),
        compile_seconds=10.0,
    )


def request_of(path: Path) -> CompileRequest:
    """The train step of a configuration, as `plan` asks for it."""
    config = load_config(str(path), ())
    return PlanSettings(
        vocab_size=1000,
        model=need(config.model, "model", "test"),
        objective=config.objective,
        mesh=config.mesh,
        optimizer=config.optimizer,
        train=need(config.train, "train", "test"),
    ).request("v5e:2x2")


LOWERED = r"""
    %3:2 = stablehlo.custom_call @tpu_custom_call(%0, %arg1) {backend_config = "{\22custom_call_config\22: {\22body\22: \22AB=\22, \0A\22n\22: 1}}", kernel_name = "attention_forward", result_layouts = []} : (tensor<2x16x128xbf16>, tensor<i32>) -> (tensor<16xf32>, tensor<1xi32>)
    %4 = stablehlo.custom_call @tpu_custom_call(%arg0) {backend_config = "{\22custom_call_config\22: {\22body\22: \22C\22}}", kernel_name = "norm"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %5 = stablehlo.custom_call @tpu_custom_call(%4) {backend_config = "{\22custom_call_config\22: {\22body\22: \22C\22}}", kernel_name = "norm"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %6 = stablehlo.custom_call @Sharding(%5) {backend_config = ""} : (tensor<8x128xf32>) -> tensor<8x128xf32>
"""  # noqa: E501


def test_a_lowered_program_has_each_of_its_kernels_with_what_it_takes_and_makes() -> None:
    forward, norm = kernels_of(LOWERED)
    assert (forward.name, forward.body, json.loads(forward.config)["custom_call_config"]["n"]) == (
        "attention_forward",
        "AB=",
        1,
    )
    shape = jax.ShapeDtypeStruct
    assert forward.operands == (shape((2, 16, 128), jnp.bfloat16), shape((), jnp.int32))
    assert forward.results == (shape((16,), jnp.float32), shape((1,), jnp.int32))
    assert (norm.name, norm.body, norm.operands) == ("norm", "C", norm.results)


def test_a_kernel_too_large_for_a_device_leaves_the_others_their_schedules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of a program that does not fit either: that is then found out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forward, norm = kernels_of(LOWERED)
    said = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (41.00G) exceeds available HBM (15.75G)."
    )

    def compiled(kernels: list[Kernel], mesh: Any, **_: Any) -> list[tuple[Kernel, KernelSchedule]]:
        if forward in kernels:
            raise jax.errors.JaxRuntimeError(said)
        return [(each, schedule()) for each in kernels]

    monkeypatch.setattr(kernels_alone, "_compiled", compiled)
    lowered: Any = SimpleNamespace(as_text=lambda: LOWERED)
    find = functools.partial(
        kernels_alone.schedules_alone,
        lowered,
        make_mesh(MeshSection()),
        accelerator=V5E,
        written=tmp_path,
    )
    assert find() == {norm.body: schedule()}
    said = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        find()


def keep(request: CompileRequest, step: CompiledStep) -> None:
    """As if the compiler had said so."""
    kept = compiler._kept_at(request)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(STEP.dump_json(step))


@pytest.fixture
def deep_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of twelve layers; what the compiler says without its code is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    values: dict[str, Any] = json.loads(json.dumps(CONFIG))
    values["model"]["architecture"]["num_hidden_layers"] = LAYERS
    values["train"]["evaluation"] = None
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    quick = request_of(path).model_copy(update={"quick": True})
    keep(quick, dataclasses.replace(step(LAYERS), quick=True))
    return path


def run_plan(path: Path, *arguments: str) -> Result:
    """As a user does."""
    return invoke("plan", path, "--vocab-size", 1000, "--topology", "v5e:2x2", *arguments)


def test_a_deep_run_is_planned_without_its_code_and_says_so(deep_run: Path) -> None:
    result = run_plan(deep_run, "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    (note,) = found["notes"]
    assert note.startswith("quick: ")
    assert "--exact" in note
    train = found["phases"][0]["train"]
    assert train["quick"]
    assert train["compiled"]["cycles"]["total"] == 700 + 30 + 160 * LAYERS
    assert train["compiled"]["memory"]["peak"] == 8000 + 331 * LAYERS


def test_the_exact_program_is_taken_where_it_has_been_compiled_before(deep_run: Path) -> None:
    exact = dataclasses.replace(step(LAYERS), compile_seconds=300.0)
    keep(request_of(deep_run), exact)
    for arguments in ((), ("--exact",)):
        result = run_plan(deep_run, "--json", *arguments)
        (found,) = json.loads(result.stdout)
        assert found["notes"] == []
        assert found["phases"][0]["train"]["compiled"]["seconds_to_compile"] == 300.0
        assert "compiled on 20" in result.stderr


def test_an_unknown_libtpu_is_compiled_exactly_and_said(
    deep_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(request_of(deep_run), dataclasses.replace(step(LAYERS), compile_seconds=300.0))
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.9" if name == "libtpu" else version(name)
    )
    keep(request_of(deep_run), dataclasses.replace(step(LAYERS), compile_seconds=300.0))
    (found,) = json.loads(run_plan(deep_run, "--json").stdout)
    assert not found["phases"][0]["train"]["quick"]
    (note,) = found["notes"]
    assert "9.9" in note
    assert fitted().libtpu in note
    assert "9.9" in run_plan(deep_run).stdout


def test_without_the_compiler_the_extra_is_named(
    deep_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)  # as where it is not installed
    arguments = ("--vocab-size", 1000, "--topology", "v5e:2x2", "--fresh")
    said = refused("plan", deep_run, *arguments)
    assert "libtpu: not installed" in said
    assert "pip install '.[plan]'" in said


# As libtpu says it of a kernel: the reason is in the second line, and in the last one an address.
REFUSAL = """RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:
Ran out of memory in memory space vmem while allocating on stack for %norm_backward.3 = (f32[1]{0})
See https://openxla.org/xla/errors/error_1001 for more details."""
WORKER = f"""#!{sys.executable}
import sys
import bert_jax.planning.compilation.step as steps

def compile_step(request):
    raise RuntimeError({REFUSAL!r})

steps.compile_step = compile_step
from bert_jax.planning.worker import main

main(*sys.argv[3:])
"""


def test_a_program_that_the_compiler_refuses_is_not_called_compiled_and_its_reason_is_said(
    deep_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker"
    worker.write_text(WORKER, encoding="utf-8")
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    monkeypatch.setattr(compiler, "check_compiler", lambda: None)
    result = run_plan(deep_run, "--exact", "--debug")
    assert result.exit_code == 1
    assert "compiled" not in result.stderr
    assert str(result.exception) == (
        f"compiling the train step of phase 0 for v5e:2x2 failed: "
        f"{' '.join(REFUSAL.splitlines()[:2])}"
    )
    shown = "".join(traceback.format_exception(result.exception))
    assert "in compile_step" in shown
    assert "error_1001" in shown
