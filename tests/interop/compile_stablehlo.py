"""Compiles exported programs for a TPU, on a machine without a TPU.

``python compile_stablehlo.py TOPOLOGY DIRECTORY …`` prints the device kind with each directory.
"""

import json
import sys
from pathlib import Path

import jax.export
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

topology = topologies.get_topology_desc(platform="tpu", topology_name=sys.argv[1])
device = topology.devices[0]
sharding = SingleDeviceSharding(device)
for directory in map(Path, sys.argv[2:]):
    program = jax.export.deserialize(bytearray((directory / "model.stablehlo").read_bytes()))
    signature = json.loads((directory / "signature.json").read_text(encoding="utf-8"))
    weights = {
        each["name"]: jax.ShapeDtypeStruct(tuple(each["shape"]), each["dtype"], sharding=sharding)
        for each in signature["weights"]
    }
    ids = jax.ShapeDtypeStruct((4, 32), np.int32, sharding=sharding)
    traced = jax.jit(program.call).trace(weights, *(ids for _ in signature["inputs"]))
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    assert compiled.as_text()
    print(device.device_kind, directory)
assert not [name for name in sys.modules if name.partition(".")[0] == "bert_jax"]
