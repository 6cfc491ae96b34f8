"""The devices that a plan compiles for lie on as many hosts as the slice has."""

import json
import os
import subprocess
import sys

import pytest

from bert_jax.parallel.accelerators import ACCELERATORS
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compiler import TPU_COMPILER
from tests.project import ROOT

PROGRAM = """
import json, sys
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.lowering import open_devices
for name in json.loads(sys.argv[1]):
    for slices in (1, 2):
        devices = open_devices(parse_topology(name), slices=slices)
        print(name, slices, len(devices), len({device.process_index for device in devices}))
"""


def test_a_slice_has_the_hosts_that_it_will_have() -> None:
    pytest.importorskip("libtpu", reason="libtpu exists for Linux x86-64 alone")
    slices = [
        TpuTopology(accelerator, shape)
        for accelerator in ACCELERATORS.values()
        for shape in accelerator.shapes
        if accelerator.name in ("v4", "v5e", "v6e")
        and 2 <= TpuTopology(accelerator, shape).chips <= 16
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([each.name for each in slices])],
        env=os.environ | TPU_COMPILER | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [
        f"{each.name} {count} {each.devices * count} {each.hosts() * count}"
        for each in slices
        for count in (1, 2)
    ]
    assert done.stdout.splitlines() == expected
