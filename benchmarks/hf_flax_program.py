"""Compiles Hugging Face's Flax BERT train step for a TPU, for `benchmarks.planned_step`.

It runs under a separate Python with transformers 4.56, flax, optax and libtpu, and imports no
module of this project. Prints the compiler's memory statistics as JSON and writes the program to a
folder.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from hf_flax_step import make_config, make_optimizer, make_step  # pyright: ignore
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers import FlaxBertForPreTraining  # pyright: ignore


def main(topology: str, megacore: str, sizes: str, rate: str, folder: str) -> None:
    """Compiles the step and writes the program.

    Args:
        topology: libtpu's name of the topology.
        megacore: ``megacore``, or empty.
        sizes: layers, hidden size, rows, length and vocabulary, separated by commas.
        rate: dropout rate.
        folder: folder for the compiler's files.
    """
    layers, hidden, rows, length, vocab = map(int, sizes.split(","))
    options = {"chip_config_name": megacore} if megacore else {}
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options)
    mesh = Mesh(np.asarray(described.devices), ("data",))
    config = make_config(layers=layers, hidden=hidden, vocab=vocab, dropout=float(rate))
    config.max_position_embeddings = max(length, config.max_position_embeddings)
    model = FlaxBertForPreTraining(config, dtype=jnp.bfloat16, _do_init=False)
    optimizer = make_optimizer()
    params = jax.eval_shape(lambda key: model.init_weights(key, (1, length)), jax.random.key(0))
    state = (params, jax.eval_shape(optimizer.init, params), jax.eval_shape(jax.random.key, 0))
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    batch = (ids, ids, jax.ShapeDtypeStruct((rows,), jnp.int32))
    # Data parallel, as in transformers' example: only the batch is sharded.
    whole, split = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in ((), ("data",)))
    step = jax.jit(make_step(model, optimizer), in_shardings=(whole, split), donate_argnums=0)
    started = time.perf_counter()
    dumped = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
    compiled = step.lower(state, batch).compile(dumped)
    seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    assert memory is not None
    figures = {
        "temporaries": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "seconds_to_compile": round(seconds, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
