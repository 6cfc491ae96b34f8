"""Which settings are tried where a run does not fit."""

from __future__ import annotations

from typing import Any

from bert_jax.config import parse_config
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.planning import PlanSettings
from bert_jax.planning.request import CompileRequest
from bert_jax.planning.suggest import COMPILED, candidates


def request(topology: str, *overrides: str, rows: int = 256) -> CompileRequest:
    phase: dict[str, Any] = {"dataset": "none", "steps": 10, "batch_size": rows}
    values = {"model": {"size": "base"}, "train": {"phases": [phase], "evaluation": None}}
    config = parse_config(values, overrides, source="test")
    assert config.model is not None
    assert config.train is not None
    settings = PlanSettings(
        vocab_size=30522,
        model=config.model,
        objective=config.objective,
        mesh=config.mesh,
        optimizer=config.optimizer,
        train=config.train,
    )
    return settings.request(topology)


def test_the_first_candidate_is_the_run_itself_and_each_is_another() -> None:
    asked = request("v5e:4x4")
    found = list(candidates(asked, parse_topology("v5e:4x4")))
    assert found[0].overrides(asked) == ()
    assert len(set(found)) == len(found) >= COMPILED
    assert found[1].overrides(asked) == ("model.execution.remat=attention",)
    tried = {override for each in found[:COMPILED] for override in each.overrides(asked)}
    assert {"model.execution.remat=full", "train.phases.0.accumulation=2"} <= tried
    assert {"mesh.fsdp=16", "mesh.tensor=2"} <= tried


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
