"""All spellings of a slice give the same topology. The error for a wrong size suggests a slice."""

from typing import Any

import pytest

from bert_jax.parallel.accelerators import ACCELERATORS, peak_flops
from bert_jax.parallel.topology import TpuTopology, parse_topology
from tests.project import refuses


@pytest.mark.parametrize(
    ("text", "name", "accelerator_type", "chips", "devices", "hosts"),
    [
        ("v2-8", "v2:2x2", "v2-8", 4, 8, 1),
        ("v3-32", "v3:4x4", "v3-32", 16, 32, 4),
        ("v4-32", "v4:2x2x4", "v4-32", 16, 16, 4),
        ("v5litepod-16", "v5e:4x4", "v5litepod-16", 16, 16, 4),
        ("v5e-16", "v5e:4x4", "v5litepod-16", 16, 16, 4),
        ("v5-lite:2x4", "v5e:2x4", "v5litepod-8", 8, 8, 1),
        ("v4-16", "v4:2x2x2", "v4-16", 8, 8, 2),
        ("v5p-32", "v5p:2x2x4", "v5p-32", 16, 16, 4),
        ("V6E-256", "v6e:16x16", "v6e-256", 256, 256, 64),
        ("trillium:2x2", "v6e:2x2", "v6e-4", 4, 4, 1),
        ("TPU v3:2x2x1", "v3:2x2", "v3-8", 4, 8, 1),
        ("tpu7x:2x2x1", "v7x:2x2x1", "tpu7x-8", 4, 8, 1),
    ],
)
def test_all_spellings_of_a_slice_are_equal(
    text: str, name: str, accelerator_type: str, chips: int, devices: int, hosts: int
) -> None:
    found = parse_topology(text)
    assert (found.name, found.accelerator_type) == (name, accelerator_type)
    assert (found.chips, found.devices, found.hosts()) == (chips, devices, hosts)


@pytest.mark.parametrize("name", ["v5e", "v6e"])
def test_pods_of_a_slice_follow_its_machines(name: str) -> None:
    for shape in ACCELERATORS[name].shapes:
        found = TpuTopology(ACCELERATORS[name], shape)
        assert found.hosts(gke=True) == (2 if shape == (2, 4) else found.hosts())


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("v3:4x5", "topology.size", {"nearest": "v3:4x4", "generation": "v3"}),
        ("v4:4x4", "topology.size", {"nearest": "v4:2x2x4"}),
        ("v5e-17", "topology.size", {"nearest": "v5litepod-16"}),
        ("v3:x", "topology.size", {"nearest": "v3:2x2"}),
        ("v5litepd-16", "topology.generation", {"hint": '; did you mean "v5litepod"?'}),
        ("v9:4x4", "topology.generation", {"allowed": [*ACCELERATORS, "local"]}),
        ("4x4", "topology.form", {}),
        ("", "topology.form", {}),
        ("loca", "topology.form", {"hint": '; did you mean "local"?'}),
    ],
)
def test_a_wrong_slice_suggests_the_nearest(text: str, key: str, values: dict[str, Any]) -> None:
    with refuses(key, place="submit.on", found=text, **values):
        parse_topology(text, key="submit.on", others=("local",))


def test_a_slice_is_a_ring_if_its_ends_are_joined() -> None:
    """In v5e, an axis of 16 is a ring. In v4, an axis of any multiple of 4 is a ring."""
    assert parse_topology("v5e:16x16").wrapped_axes == (True, True)
    assert parse_topology("v5e:8x16").wrapped_axes == (False, True)
    assert parse_topology("v4:2x4x4").wrapped_axes == (False, True, True)


@pytest.mark.parametrize("accelerator", ACCELERATORS.values(), ids=ACCELERATORS)
def test_every_type_and_shape_reads_back(accelerator) -> None:
    for shape in accelerator.shapes:
        topology = parse_topology(f"{accelerator.name}:{'x'.join(map(str, shape))}")
        assert topology.shape == shape
        assert parse_topology(topology.accelerator_type) == topology
        assert parse_topology(topology.libtpu_name) == topology


def test_a_devices_peak_is_its_share_of_the_chips() -> None:
    class Device:
        device_kind = "TPU v3"

    assert peak_flops(Device()) == 61.5e12
    Device.device_kind = "TPU v5 lite"
    assert peak_flops(Device()) == 197e12
    Device.device_kind = "cpu"
    assert peak_flops(Device()) is None
