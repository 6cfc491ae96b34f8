"""Which settings are tried where a run does not fit."""

from typing import Any

from bert_jax.config import parse_config
from bert_jax.errors import UserError
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.planning import COMPILED, candidates, find_fitting
from bert_jax.planning.request import CompileRequest
from bert_jax.verbs.plan import train_step
from tests.planning.plans import compiled, refused_step


def request(topology: str, *overrides: str, rows: int = 256) -> CompileRequest:
    phase: dict[str, Any] = {"dataset": "none", "steps": 10, "batch_size": rows}
    values = {"model": {"size": "base"}, "train": {"phases": [phase], "evaluation": None}}
    config = parse_config(values, overrides, source="test")
    return train_step(config, topology, vocab_size=30522)


def test_the_first_candidate_is_the_run_itself_and_each_is_another() -> None:
    for remat in ("none", "attention", "dots"):
        asked = request("v5e:4x4", f"model.execution.remat={remat}")
        found = list(candidates(asked, parse_topology("v5e:4x4")))
        assert found[0].overrides(asked) == ()
        assert len(set(found)) == len(found) >= COMPILED
        tried = {override for each in found[:COMPILED] for override in each.overrides(asked)}
        assert {"model.execution.remat=full", "train.phases.0.accumulation=2"} <= tried
        assert {"mesh.fsdp=16", "mesh.tensor=2"} <= tried


class FakeCompiler:
    """Of programs that need memory and time by their microbatch and what is kept of it."""

    def __init__(self, available: int) -> None:
        self.available = available
        self.titles: list[str] = []

    def __call__(self, asked: CompileRequest, title: str) -> CompiledStep:
        self.titles.append(title)
        phase, remat = asked.train.phases[0], asked.model.execution.remat
        kept = {"none": 10, "attention": 6, "full": 3}[remat]
        needed = 50 + kept * phase.batch_size // phase.accumulation
        if needed > self.available:
            return refused_step(needed, self.available)
        return compiled(peak=needed)


def test_what_surely_needs_too_much_is_not_compiled_and_what_fits_is_found_behind_it() -> None:
    compiler = FakeCompiler(available=50 + 3 * 32)  # remat=full and accumulation=8
    found = find_fitting(request("v5e:4x4"), parse_topology("v5e:4x4"), compiled=compiler)
    assert len(compiler.titles) <= COMPILED + 1
    overrides = [set(each) for each, _ in found]
    assert {"model.execution.remat=full", "train.phases.0.accumulation=8"} in overrides
    assert all(step.memory is not None for _, step in found)
    # No rung of the ladder is compiled that the first one's need rules out.
    assert not any("accumulation=2" in title and "remat" not in title for title in compiler.titles)
    # As small a microbatch in one piece: another batch, behind those of the run's own.
    assert overrides[-1] == {"model.execution.remat=full", "train.phases.0.batch_size=32"}
    assert "settings 1 of at most 11: as configured" in compiler.titles[0]


def test_where_the_run_fits_a_larger_batch_is_tried_too() -> None:
    asked = request("v5e:4x4")
    compiler = FakeCompiler(available=10_000)
    found = find_fitting(asked, parse_topology("v5e:4x4"), compiled=compiler)
    assert [each for each, _ in found[:2]] == [(), ("mesh.fsdp=16",)]
    assert found[-1][0] == ("train.phases.0.batch_size=512",)
    assert len(found) == len(compiler.titles) == 5


def test_settings_that_do_not_go_together_are_left_out() -> None:
    def refuses_tensor(asked: CompileRequest, title: str) -> CompiledStep:
        if asked.mesh.tensor > 1:
            raise UserError("mesh.tensor: no")
        return FakeCompiler(10_000)(asked, title)

    found = find_fitting(request("v5e:4x4"), parse_topology("v5e:4x4"), compiled=refuses_tensor)
    assert found
    assert not any("mesh.tensor=2" in each for each, _ in found)


def test_overrides_are_those_that_make_the_candidates_request() -> None:
    asked = request("v5e:4x4", "mesh.tensor=2")
    for each in candidates(asked, parse_topology("v5e:4x4")):
        pasted = request("v5e:4x4", "mesh.tensor=2", "mesh.data=-1", *each.overrides(asked))
        assert pasted == each.applied(asked)


def test_no_candidate_deals_a_batch_unevenly() -> None:
    asked = request("v5e:4x4", rows=48)
    found = list(candidates(asked, parse_topology("v5e:4x4")))
    assert {each.accumulation for each in found if each.tensor == 1} == {1}
    assert all(48 % (16 // each.tensor * each.accumulation) == 0 for each in found)
