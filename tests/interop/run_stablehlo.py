"""Runs an exported program with JAX and safetensors, without bert_jax.

``python run_stablehlo.py DIRECTORY BATCHES.npz RESULTS.npz`` reads the inputs of several batches,
such as ``0/input_ids``, and writes their outputs, such as ``0/pooled``.
"""

import json
import sys
from pathlib import Path

import jax.export
import numpy as np
from safetensors.numpy import load_file

directory, batches, results = map(Path, sys.argv[1:])
program = jax.export.deserialize(bytearray((directory / "model.stablehlo").read_bytes()))
signature = json.loads((directory / "signature.json").read_text(encoding="utf-8"))
weights = load_file(directory / signature["weights_file"])
found = {}
with np.load(batches) as arrays:
    for number in sorted({name.partition("/")[0] for name in arrays}):
        inputs = [arrays[f"{number}/{each['name']}"] for each in signature["inputs"]]
        outputs = dict(program.call(weights, *inputs))
        for name, array in outputs.items():
            found[f"{number}/{name}"] = np.asarray(array)
assert not [name for name in sys.modules if name.partition(".")[0] == "bert_jax"]
np.savez(results, **found)
