"""Settings that `plan` suggests if a run does not fit."""

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


def test_candidates_start_with_the_run_and_are_distinct() -> None:
    for remat in ("none", "attention", "dots"):
        asked = request("v5e:4x4", f"model.execution.remat={remat}")
        found = list(candidates(asked, parse_topology("v5e:4x4")))
        assert found[0].overrides(asked) == ()
        assert len(set(found)) == len(found) >= COMPILED
        tried = {override for each in found[:COMPILED] for override in each.overrides(asked)}
        assert {"model.execution.remat=full", "train.phases.0.accumulation=2"} <= tried
        assert {"mesh.fsdp=16", "mesh.tensor=2"} <= tried


class FakeCompiler:
    """Returns steps whose memory depends on the microbatch and on the stored activations."""

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


def test_hopeless_candidates_are_skipped() -> None:
    compiler = FakeCompiler(available=50 + 3 * 32)  # fits with remat=full and accumulation=8
    found = find_fitting(request("v5e:4x4"), parse_topology("v5e:4x4"), compiled=compiler)
    assert len(compiler.titles) <= COMPILED + 1
    overrides = [set(each) for each, _ in found]
    assert {"model.execution.remat=full", "train.phases.0.accumulation=8"} in overrides
    assert all(step.memory is not None for _, step in found)
    # The memory of the first candidate rules out other candidates, which are not compiled.
    assert not any("accumulation=2" in title and "remat" not in title for title in compiler.titles)
    # The last suggestion has equal microbatches, no accumulation and so a smaller batch.
    assert overrides[-1] == {"model.execution.remat=full", "train.phases.0.batch_size=32"}
    assert "settings 1 of at most 11: as configured" in compiler.titles[0]


def test_a_run_that_fits_also_tries_a_larger_batch() -> None:
    asked = request("v5e:4x4")
    compiler = FakeCompiler(available=10_000)
    found = find_fitting(asked, parse_topology("v5e:4x4"), compiled=compiler)
    assert [each for each, _ in found[:2]] == [(), ("mesh.fsdp=16",)]
    assert found[-1][0] == ("train.phases.0.batch_size=512",)
    assert len(found) == len(compiler.titles) == 5


def test_incompatible_settings_are_left_out() -> None:
    def refuses_tensor(asked: CompileRequest, title: str) -> CompiledStep:
        if asked.mesh.tensor > 1:
            raise UserError("test.refused", "no", place="mesh.tensor")
        return FakeCompiler(10_000)(asked, title)

    found = find_fitting(request("v5e:4x4"), parse_topology("v5e:4x4"), compiled=refuses_tensor)
    assert found
    assert not any("mesh.tensor=2" in each for each, _ in found)


def test_overrides_reproduce_the_candidates_request() -> None:
    asked = request("v5e:4x4", "mesh.tensor=2")
    for each in candidates(asked, parse_topology("v5e:4x4")):
        pasted = request("v5e:4x4", "mesh.tensor=2", "mesh.data=-1", *each.overrides(asked))
        assert pasted == each.applied(asked)


def test_every_candidate_splits_the_batch_evenly() -> None:
    asked = request("v5e:4x4", rows=48)
    found = list(candidates(asked, parse_topology("v5e:4x4")))
    assert {each.accumulation for each in found if each.tensor == 1} == {1}
    assert all(48 % (16 // each.tensor * each.accumulation) == 0 for each in found)
