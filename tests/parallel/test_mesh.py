"""Makes meshes and each process's share of a batch. Refuses settings that do not fit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.parallel.mesh import initialise, make_mesh, process_share
from bert_jax.parallel.section import MeshSection, mesh_shape
from tests.project import environment, refuses


@given(st.tuples(*[st.integers(1, 8)] * 3))
@settings(deadline=None, max_examples=30)
def test_axis_sizes_multiply_to_devices_and_minus_one_fills(
    sizes: tuple[int, int, int],
) -> None:
    data, fsdp, tensor = sizes
    count = data * fsdp * tensor
    assert mesh_shape(MeshSection(data=data, fsdp=fsdp, tensor=tensor), count) == sizes
    assert mesh_shape(MeshSection(data=-1, fsdp=fsdp, tensor=tensor), count) == sizes
    assert mesh_shape(MeshSection(data=data, fsdp=-1, tensor=tensor), count) == sizes
    assert mesh_shape(MeshSection(data=data, fsdp=fsdp, tensor=-1), count) == sizes


@pytest.mark.parametrize(
    ("axes", "key", "values"),
    [
        ({"fsdp": 0}, "mesh.axis_zero", {"place": "mesh.fsdp"}),
        ({"data": -1, "tensor": -1}, "mesh.two_free_axes", {"found": ["data", "tensor"]}),
        ({"tensor": 3}, "mesh.size", {"data": -1, "fsdp": 1, "tensor": 3, "devices": 8}),
    ],
)
def test_a_mesh_of_wrong_size_is_refused_in_one_line(
    axes: dict[str, int], key: str, values: dict[str, Any]
) -> None:
    with refuses(key, **values):
        mesh_shape(MeshSection.model_validate(axes), 8)


def test_a_mesh_has_every_device_once() -> None:
    mesh = make_mesh(MeshSection(data=2, fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"copy": 1, "data": 2, "fsdp": 2, "tensor": 2}
    assert sorted(device.id for device in mesh.devices.flat) == list(range(8))
    mesh = make_mesh(MeshSection(copies=2, tensor=2))
    assert dict(mesh.shape) == {"copy": 2, "data": 2, "fsdp": 1, "tensor": 2}


def test_wrong_numbers_of_slices_and_copies_are_refused() -> None:
    with refuses("mesh.slices", found=3, data=8):
        make_mesh(MeshSection(slices=3))
    with refuses("mesh.copies", found=3, data=8):
        make_mesh(MeshSection(copies=3))
    with refuses("mesh.slices_of_devices", found=2):
        make_mesh(MeshSection(slices=2))


def test_one_process_reads_the_whole_batch() -> None:
    share = process_share(make_mesh(MeshSection(tensor=2)))
    assert (share.index, share.count) == (0, 1)


IN_A_TOPOLOGY = r"""
import jax, numpy as np, re, sys
from jax.experimental import topologies
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import make_mesh, process_share
from bert_jax.parallel.section import MeshSection
wanted = ("v3:4x4", 2, 1), ("v5e:4x4", 4, 1), ("v5e:4x4", 8, 1), ("v5e:4x4", 2, 2)
for name, tensor, slices in wanted:
    options = {"num_slices": slices} if slices > 1 else {}
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=name, **options
    ).devices
    mesh = make_mesh(MeshSection(tensor=tensor, slices=slices), devices)
    for index, inside in enumerate(mesh.devices):
        assert {getattr(device, "slice_index", 0) for device in inside.flat} == {index}
    hosts = sorted({device.process_index for device in devices})
    shares = [process_share(mesh, process_index=host) for host in hosts]
    assert len({device.id for device in mesh.devices.flat}) == len(devices)
    print(name, *mesh.devices.shape, len(hosts), sorted((s.index, s.count) for s in shares))

uneven = [[d for d in devices if d.process_index == host][:3] for host in hosts[:2]]
mesh = jax.sharding.Mesh(np.array(uneven).reshape(1, 3, 1, 2), mesh.axis_names)
try:
    process_share(mesh, process_index=hosts[0])
except UserError as error:
    print(error.key, *re.findall(r"\d+", error.message)[1:])
"""


def test_pod_hosts_share_a_batch_evenly_or_are_refused() -> None:
    """Includes a tensor axis of 2 on a 4×4 torus, which splits an axis of the torus."""
    pytest.importorskip("libtpu", reason="libtpu needs Linux x86-64")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_TOPOLOGY],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "v3:4x4 1 16 1 2 4 [(0, 4), (1, 4), (2, 4), (3, 4)]",
        "v5e:4x4 1 4 1 4 4 [(0, 2), (0, 2), (1, 2), (1, 2)]",
        "v5e:4x4 1 2 1 8 4 [(0, 2), (0, 2), (1, 2), (1, 2)]",
        f"v5e:4x4 2 8 1 2 8 {[(host, 8) for host in range(8)]}",
        "mesh.uneven_processes 3 1 2 2",
    ]


def test_a_missing_tpu_is_an_error() -> None:
    with refuses("mesh.platform", found="tpu", devices=8, platform="cpu"):
        initialise(MeshSection(platform="tpu"))


def test_simulated_devices_need_the_cpu_and_a_fresh_jax() -> None:
    with refuses("mesh.simulated_devices", found=4, platform="tpu"):
        initialise(MeshSection(platform="tpu", simulated_devices=4))
    assert len(jax.devices()) == 8
    with refuses("mesh.too_late", option="jax_num_cpu_devices", found=4):
        initialise(MeshSection(simulated_devices=4))


def test_a_host_without_accelerators_gets_no_libtpu_errors() -> None:
    program = "from bert_jax.parallel.mesh import open_mesh; print(open_mesh().devices.flat[0])"
    hidden = ("JAX_PLATFORMS", "XLA_FLAGS")
    kept = {
        name: value
        for name, value in environment().items()
        if name not in hidden and not name.startswith("TPU_")
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.startswith("cpu:0")
    assert done.stderr == ""


def test_device_free_work_does_not_open_a_tpu(tmp_path: Path) -> None:
    """Without a TPU, libtpu would print errors if JAX opened it."""
    program = (
        "import bert_jax, jax\n"
        "assert not bert_jax.doctor(config=bert_jax.MeshSection(platform='gpu')).ok\n"
        "print(jax.config.jax_platforms)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={name: value for name, value in environment().items() if name != "JAX_PLATFORMS"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1].endswith("cpu")
    assert "host bounds" not in done.stderr
