"""The quick form: estimates for a program without generated code."""

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

from bert_jax.errors import RunStopped
from bert_jax.files.host_lock import host_lock
from bert_jax.parallel.accelerators import ACCELERATORS
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.planning.compilation import kernels as compiled_kernels
from bert_jax.planning.compilation.compiler_files import read_scheduled
from bert_jax.planning.compilation.cycles import KernelCycles, count_cycles
from bert_jax.planning.compilation.hlo import parse_hlo
from bert_jax.planning.compilation.kernels import Kernel, Schedule, kernels_of
from bert_jax.planning.compilation.op_cycles import estimates, features_of, fitted
from bert_jax.planning.compilation.program import Program
from bert_jax.planning.compilation.step import STEP, CompiledStep
from bert_jax.planning.compiler import kept_at
from bert_jax.planning.request import CompileRequest
from bert_jax.verbs.plan import train_step
from tests.planning.plans import VOCABULARY, compiled, run, values
from tests.project import invoke, says

pytestmark = pytest.mark.slow

V5E = ACCELERATORS["v5e"]
HOSTS = {name: host_lock("tpu").versions[name] for name in ("jax", "libtpu")}
# A program with a product and tanh, a copy, a scalar, and a kernel.
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
    'backend_config={"custom_call_config":{"body":"AB=","cost_estimate":{"flops":"200000000"}}}',
)


SCHEDULE = Schedule(bundles=800, slots={"VALU": 400}, steps=8, unknown_loops=0)


def test_an_operations_features_are_products_and_bytes() -> None:
    found = {one.name: one for one in Program.of(parse_hlo(PROGRAM)).operations}
    features = features_of(found["fusion.1"], V5E)
    per_cycle = 197e12 / 1.5e9
    assert features.products == pytest.approx(2 * 8192 * 768 * 3072 / per_cycle)
    assert features.hbm == pytest.approx(2 * 8192 * (768 + 3072) / V5E.bytes_per_cycle)
    assert features.on_chip == pytest.approx(2 * 768 * 3072 / V5E.bytes_per_cycle)
    registers = 8192 * 3072 / 1024
    assert (features.elementwise, features.transcendental) == (0, registers)
    assert features_of(found["copy.1"], V5E).moved == registers


def test_only_operations_on_the_core_get_cycles() -> None:
    program = Program.of(parse_hlo(PROGRAM), estimates(V5E))
    cycles = {one.name: one.cycles for one in program.operations}
    assert cycles["add.1"] is None
    assert cycles["slice.1"] is None  # an asynchronous copy
    assert cycles["attention_forward.2"] is None
    product = cycles["fusion.1"]
    assert product is not None
    # A product takes at least the time of the matrix units, and less than twice that time.
    least = 2 * 8192 * 768 * 3072 / (197e12 / 1.5e9)
    assert least < product < 2 * least
    found = count_cycles(program, {"AB=": SCHEDULE}, V5E)
    assert found.by_kind["matrix products"] == product
    assert found.total - found.in_kernels == product + (cycles["copy.1"] or 0)
    assert found.kernel_flops == 200_000_000
    (call,) = found.kernels
    assert (call.bundles, call.busiest, call.busiest_bundles) == (800, "VALU", 400)
    # The kernel copies the words of its operands, and a result of 16 elements of two bytes.
    assert call.copied_bytes == 2 * 16 * 6 * 2 * 512 * 4 + 16 * 2
    # Products take longer than copies. The copies of one of 8 grid steps are exposed.
    products, copies = round(2e8 / (197e12 / 1.5e9)), call.copied_bytes / V5E.bytes_per_cycle
    assert call.cycles == round(max(products, copies) + min(products, copies) / 8)
    without = count_cycles(program, {}, V5E)
    assert (without.in_kernels, without.uncounted) == (0, {"attention_forward.2": 1})


def test_a_kernel_may_declare_fewer_bytes_than_its_arrays_have() -> None:
    text = PROGRAM.replace('"flops":"200000000"', '"flops":"200000000","bytes_accessed":"{}"')
    for declared in (1000, 10**9):
        program = Program.of(parse_hlo(text.replace("{}", str(declared))), estimates(V5E))
        (call,) = count_cycles(program, {"AB=": SCHEDULE}, V5E).kernels
        arrays = 2 * 16 * 6 * 2 * 512 * 4 + 16 * 2
        assert call.copied_bytes == min(declared, arrays)


def test_the_cost_models_are_checked_for_the_hosts_libtpu() -> None:
    assert HOSTS["libtpu"] in fitted().libtpu


def test_every_generation_has_a_cost_model() -> None:
    module = parse_hlo(PROGRAM)
    for accelerator in ACCELERATORS.values():
        program = Program.of(module, estimates(accelerator))
        assert any(one.cycles for one in program.operations)
    assert set(fitted().models) <= set(ACCELERATORS)


@pytest.mark.parametrize("page", ["page 0, ", ""])  # depends on the version of libtpu
def test_memory_is_read_from_the_compilers_report(page: str) -> None:
    found = read_scheduled(
        "HloModule jit_step",
        f"allocation 1: size 93978624, {page}parameter 6, shape |f32[30592,768]| at "
        "ShapeIndex {}, maybe-live-out:\n value: <1 p @0> (size=93978624,offset=0)\n"
        f"allocation 3: size 512, {page}output shape is |(f32[])|, maybe-live-out:\n"
        f"allocation 7: size 93978624, {page}thread-local:\n"
        f"allocation 492: size 467812864, {page}preallocated-temp:\n"
        f"allocation 495: size 117440512, color 1, {page}preallocated-temp:\n",
    )
    given = 93978624 + 512
    assert found == ("HloModule jit_step", given, 467812864, given + 467812864)
    with pytest.raises(ValueError, match="no buffers"):
        read_scheduled("", "x")


LOWERED = r"""
    %3:2 = stablehlo.custom_call @tpu_custom_call(%0, %arg1) {backend_config = "{\22custom_call_config\22: {\22body\22: \22AB=\22, \0A\22n\22: 1}}", kernel_name = "attention_forward", result_layouts = []} : (tensor<2x16x128xbf16>, tensor<i32>) -> (tensor<16xf32>, tensor<1xi32>)
    %4 = stablehlo.custom_call @tpu_custom_call(%arg0) {backend_config = "{\22custom_call_config\22: {\22body\22: \22C\22}}", kernel_name = "norm"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %5 = stablehlo.custom_call @tpu_custom_call(%4) {backend_config = "{\22custom_call_config\22: {\22body\22: \22C\22}}", kernel_name = "norm"} : (tensor<8x128xf32>) -> tensor<8x128xf32>
    %6 = stablehlo.custom_call @Sharding(%5) {backend_config = ""} : (tensor<8x128xf32>) -> tensor<8x128xf32>
"""  # noqa: E501


def test_kernels_of_a_lowered_program_have_their_operands() -> None:
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


def test_an_oversized_kernel_keeps_the_others_schedules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel has no schedule. The error appears later, when the whole step is compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forward, norm = kernels_of(LOWERED)
    said = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (41.00G) exceeds available HBM (15.75G)."
    )

    def compile_kernels(kernels: list[Kernel], *_: Any) -> dict[str, Schedule]:
        if forward in kernels:
            raise jax.errors.JaxRuntimeError(said)
        return {each.body: SCHEDULE for each in kernels}

    monkeypatch.setattr(compiled_kernels, "_compiled", compile_kernels)
    lowered: Any = SimpleNamespace(as_text=lambda: LOWERED)
    mesh = make_mesh(MeshSection())
    find = functools.partial(compiled_kernels.schedules_alone, lowered, mesh)
    assert find(accelerator=V5E, written=tmp_path) == {norm.body: SCHEDULE}
    said = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        find(accelerator=V5E, written=tmp_path)


def keep(request: CompileRequest, step: CompiledStep) -> None:
    """Stores a made-up result of the compiler in the cache."""
    kept_at(request).parent.mkdir(parents=True, exist_ok=True)
    kept_at(request).write_bytes(STEP.dump_json(step))


EXACT = train_step(run("train.evaluation=null"), "v5e:2x2", vocab_size=VOCABULARY)


@pytest.fixture
def deep_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with twelve layers, and a cache with its quick compilation."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "run.yaml"
    settings = values()
    settings["train"]["evaluation"] = None
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    keep(EXACT.model_copy(update={"quick": True}), compiled())
    return path


def run_plan(path: Path, *arguments: str) -> Result:
    """Runs `plan` from the command line."""
    return invoke("plan", path, "--vocab-size", VOCABULARY, "--topology", "v5e:2x2", *arguments)


def test_a_deep_run_is_planned_without_code_generation(deep_run: Path) -> None:
    result = run_plan(deep_run, "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    (note,) = found["notes"]
    assert note.startswith("quick: ")
    assert "--exact" in note
    train = found["phases"][0]["train"]
    assert train["quick"]
    assert train["compiled"]["cycles"]["total"] == 3_000_000
    assert train["compiled"]["memory"]["peak"] == 8 * 2**30


def test_a_stored_exact_program_is_preferred(deep_run: Path) -> None:
    keep(EXACT, compiled(quick=False, compile_seconds=300.0))
    for arguments in ((), ("--exact",)):
        result = run_plan(deep_run, "--json", *arguments)
        (found,) = json.loads(result.stdout)
        assert found["notes"] == []
        assert found["phases"][0]["train"]["compiled"]["seconds_to_compile"] == 300.0
        assert "cached on 20" in result.stderr


def test_an_unknown_libtpu_is_reported_and_compiled_exactly(
    deep_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.9" if name == "libtpu" else version(name)
    )
    keep(EXACT, compiled(quick=False))
    (found,) = json.loads(run_plan(deep_run, "--json").stdout)
    assert not found["phases"][0]["train"]["quick"]
    (note,) = found["notes"]
    assert "9.9" in note
    assert all(each in note for each in fitted().libtpu)
    assert "9.9" in run_plan(deep_run).stdout


@pytest.mark.parametrize("own", [HOSTS, HOSTS | {"libtpu": "9.9"}])
def test_a_plan_names_its_compiler_and_the_hosts(
    own: dict[str, str], deep_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: own.get(name) or version(name))
    keep(EXACT, compiled(quick=False))
    (found,) = json.loads(run_plan(deep_run, "--json").stdout)
    assert found["versions"] == {"compiled": own, "hosts": HOSTS}
    named = [f"jax {each['jax']} and libtpu {each['libtpu']}" for each in (own, HOSTS)]
    for arguments in ((), ("--details",)):
        (line,) = [
            line
            for line in run_plan(deep_run, *arguments).stdout.splitlines()
            if line.startswith("Compiled with ")
        ]
        assert line.startswith(f"Compiled with {named[0]}")
        assert ("the versions that hosts install" in line) is (own == HOSTS)
        assert (f"hosts install {named[1]}" in line) is (own != HOSTS)


def test_kernels_of_matrix_products_are_time_of_the_matrix_units(deep_run: Path) -> None:
    kernel = KernelCycles(
        name="attention_forward",
        calls=2,
        bundles=100_000,
        cycles=150_000,
        busiest="MXU",
        busiest_bundles=90_000,
        copied_bytes=7,
    )
    step = compiled()
    assert step.cycles is not None
    step = dataclasses.replace(step, cycles=dataclasses.replace(step.cycles, kernels=(kernel,)))
    keep(EXACT.model_copy(update={"quick": True}), step)
    (found,) = json.loads(run_plan(deep_run, "--json").stdout)
    parts = found["phases"][0]["train"]["estimated"]["parts"]
    assert parts["matrix units"] == pytest.approx((2_000_000 + 2 * 150_000) / 1.5e9)


# Error of libtpu for a kernel. The second line has the reason, and the last line an address.
REFUSAL = """RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:
Ran out of memory in memory space vmem while allocating on stack for %norm_backward.3 = (f32[1]{0})
See https://openxla.org/xla/errors/error_1001 for more details."""
WORKER = f"""#!{sys.executable}
import sys
import bert_jax.planning.compilation.step as steps

def compile_step(request):
    raise RuntimeError({REFUSAL!r})

steps.compile_step = compile_step
steps.main(*sys.argv[3:])
"""


def test_a_refused_program_is_reported_with_its_reason(
    deep_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker"
    worker.write_text(WORKER, encoding="utf-8")
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    monkeypatch.setitem(sys.modules, "libtpu", SimpleNamespace(__spec__="installed"))
    result = run_plan(deep_run, "--exact", "--debug")
    assert result.exit_code == 1
    assert "compiled" not in result.stderr
    error = result.exception
    assert isinstance(error, RunStopped)
    assert error.key == "plan.compiler"
    says(error, title="the train step of phase 0 for v5e:2x2", reason=REFUSAL.splitlines()[:2])
    shown = "".join(traceback.format_exception(error))
    assert "in compile_step" in shown
    assert "error_1001" in shown
