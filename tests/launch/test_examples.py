"""The examples of tpu_setup go with the table of accelerators and the command line."""

import shlex
from pathlib import Path

import yaml

from bert_jax.config import parse_config
from bert_jax.parallel.topology import parse_topology

FOLDER = Path(__file__).parents[2] / "tpu_setup"


def test_the_skypilot_example_asks_for_what_there_is() -> None:
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    topology = parse_topology(task["resources"]["accelerators"])
    runtime = task["resources"]["accelerator_args"]["runtime_version"]
    assert runtime == topology.accelerator.runtime_version
    program, verb, _, *overrides = shlex.split(task["run"])
    assert (program, verb) == ("bert-jax", "pretrain")
    parse_config({}, overrides, source="skypilot.yaml")
