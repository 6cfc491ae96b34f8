"""``python -m tests.launch.manifests`` writes the golden requests and manifests.

Every TPU generation has three jobs: one host, four hosts, and four slices of four hosts.
"""

import pathlib
from collections.abc import Iterator

from bert_jax.launch.gke_launcher import GkeJobSets
from bert_jax.launch.job import Attempt
from bert_jax.launch.tpu_launcher import QueuedResources
from bert_jax.parallel.accelerators import ACCELERATORS, Accelerator
from bert_jax.parallel.topology import TpuTopology
from tests.launch.cloud_jobs import make_attempt
from tests.launch.tpu_service import PROJECT

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "launch"
IMAGE = "us-docker.pkg.dev/test-project/bert/bert-jax:1"


def attempts(accelerator: Accelerator) -> Iterator[tuple[str, Attempt]]:
    shapes = [TpuTopology(accelerator, shape) for shape in accelerator.shapes]
    one = next(t for t in shapes if t.chips == accelerator.chips_per_host)
    four = next(t for t in shapes if t.hosts() == 4)
    sizes = {"1-host": (one, 1), "4-hosts": (four, 1), "4-slices": (four, 4)}
    for name, (topology, slices) in sizes.items():
        yield (
            name,
            make_attempt(
                "gs://bucket",
                on=topology.name,
                slices=slices,
                zone=accelerator.zones[0],
                provisioning="spot" if name == "4-hosts" else "on-demand",
                data_disk_gb=200 if name == "4-slices" else None,
                image=IMAGE,
                limits={"wait_hours": 12},
            ),
        )


def texts() -> Iterator[tuple[str, str]]:
    for accelerator in ACCELERATORS.values():
        for size, attempt in attempts(accelerator):
            name = f"{accelerator.name}-{size}"
            if accelerator.gke_slice is not None:
                (request,) = GkeJobSets().render(attempt)
                yield f"{name}.jobset.yaml", request.body
            if accelerator.runtime_version is not None:
                (request,) = QueuedResources(PROJECT).render(attempt)
                yield f"{name}.queued-resource.json", f"{request.body}\n"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for name, text in texts():
        (GOLDEN / name).write_text(text)


if __name__ == "__main__":
    main()
