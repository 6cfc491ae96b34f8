"""Collectives of hand-written programs: bytes, groups, links, overlap."""

import dataclasses

import pytest

from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.collectives import (
    DCN,
    ICI,
    DevicePlacement,
    device_groups,
    find_collectives,
)
from tests.planning.test_hlo import cycles, module

ROWS, COLUMNS = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]
HOP = 1e-6  # seconds
REDUCE = "ROOT %r = f32[] all-reduce(%a), channel_id=1, replica_groups={}, to_apply=%add"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ROWS),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", COLUMNS),
        ("[2,4]<=[8]", ROWS),
        ("[4,2]<=[2,4]T(1,0)", COLUMNS),
        ("{{0,2},{1,3},{4,6},{5,7}}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ],
)
def test_groups_are_parsed_in_every_form(groups: str, expected: list[list[int]]) -> None:
    text = f"ENTRY %main (a: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  {REDUCE}\n}}\n"
    program = module(text.replace("replica_groups={}", f"replica_groups={groups}"))
    assert device_groups(program.operations[-1].instruction, devices=8) == expected


EXCHANGE = f"""
%gathering (g: bf16[100]) -> bf16[800] {{
  %g = bf16[100] parameter(0)
  ROOT %all-gather.1 = bf16[800] all-gather(%g), replica_groups=[1,8]<=[8], dimensions={{0}}
}}

ENTRY %main (a: f32[1000]) -> f32[1000] {{
  %a = f32[1000]{{0}} parameter(0)
  %start = (f32[1000]{{0}}, f32[1000]{{0}}, u32[], u32[]) collective-permute-start(%a), \
source_target_pairs={{{{0,1}},{{1,2}},{{2,3}},{{3,0}}}}
  %work = f32[1000]{{0}} multiply(%a, %a), {cycles(3000)}
  %done = f32[1000]{{0}} collective-permute-done(%start)
  %alone = f32[1000]{{0}} multiply(%done, %a), {cycles(40)}
  %sum = f32[1000]{{0}} all-reduce(%alone), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  %slices = f32[1000]{{0}} all-reduce(%alone), replica_groups={{{{0,4}},{{1,5}},{{2,6}},{{3,7}}}}
  ROOT %fused = bf16[800] fusion(%sum), kind=kCustom, calls=%gathering
}}
"""


# A reduce-scatter over four devices, and an all-gather that overlaps a product. The all-gather
# occurs in three fusions: start, overlap and end.
IN_FUSIONS = f"""
%all-reduce-scatter.1 (s: f32[400]) -> f32[100] {{
  %s = f32[400] parameter(0)
  %all-reduce.1 = f32[400] all-reduce(%s), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  %id = u32[] partition-id()
  ROOT %own = f32[100] dynamic-slice(%all-reduce.1, %id), dynamic_slice_sizes={{100}}
}}

%starting (p: f32[100]) -> (f32[100], f32[400], u32[]) {{
  %p = f32[100] parameter(0)
  %all-gather.1 = f32[400] all-gather(%p), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  ROOT %begin = (f32[100], f32[400], u32[]) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}}

%async_collective_fusion.1 (p.1: f32[100], q: f32[400], r: u32[]) -> (f32[8], f32[400], u32[]) {{
  %p.1 = f32[100] parameter(0)
  %q = f32[400] parameter(1)
  %r = u32[] parameter(2)
  %product = f32[8] convolution(%p.1, %p.1), dim_labels=bf_io->bf
  %all-gather.2 = f32[400] all-gather(%p.1), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  ROOT %both = (f32[8], f32[400], u32[]) tuple(%product, %all-gather.2, %r)
}}

%ending (p.2: f32[100], q.2: f32[400], r.2: u32[]) -> f32[400] {{
  %p.2 = f32[100] parameter(0)
  %q.2 = f32[400] parameter(1)
  %r.2 = u32[] parameter(2)
  %all-gather.3 = f32[400] all-gather(%p.2), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  ROOT %end = f32[400] custom-call(%p.2, %q.2, %all-gather.3, %r.2), \
custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (g: f32[400]) -> f32[400] {{
  %g = f32[400] parameter(0)
  %share = f32[100] fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
  %start = (f32[100], f32[400], u32[]) fusion(%share), kind=kCustom, calls=%starting
  %kept = f32[400] get-tuple-element(%start), index=1
  %flag = u32[] get-tuple-element(%start), index=2
  %beside = (f32[8], f32[400], u32[]) fusion(%share, %kept, %flag), kind=kOutput, \
calls=%async_collective_fusion.1, {cycles(700)}
  %more = f32[400] multiply(%g, %g), {cycles(50)}
  %kept.1 = f32[400] get-tuple-element(%beside), index=1
  %flag.1 = u32[] get-tuple-element(%beside), index=2
  %done = f32[400] fusion(%share, %kept.1, %flag.1), kind=kCustom, calls=%ending
  ROOT %after = f32[400] multiply(%done, %more), {cycles(90)}
}}
"""
TWO_SLICES = DevicePlacement(
    topology=parse_topology("v5e:2x2"),
    mesh={"data": 2, "fsdp": 1, "tensor": 4},
    coordinates=[(x, y, 0) for _ in range(2) for x in range(2) for y in range(2)],
    slices=[0, 0, 0, 0, 1, 1, 1, 1],
)


def test_collectives_inside_fusions_count_once() -> None:
    scatter, gather = find_collectives(module(IN_FUSIONS), TWO_SLICES)
    assert (scatter.kind, scatter.name, scatter.bytes) == ("reduce-scatter", "share", 1600)
    assert scatter.seconds == pytest.approx(3 / 4 * 1600 / 100e9 + 2 * HOP)
    assert (gather.kind, gather.name, gather.bytes) == ("all-gather", "start", 1600)
    assert gather.hidden_cycles == 700 + 50


TOGETHER = f"""
ENTRY %main (a: f32[400], b: f32[400]) -> f32[1600] {{
  %a = f32[400] parameter(0)
  %b = f32[400] parameter(1)
  %first = (f32[400], f32[1600]) all-gather-start(%a), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  %alone = f32[400] multiply(%a, %a), {cycles(100)}
  %second = (f32[400], f32[1600]) all-gather-start(%b), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  %beside = f32[400] multiply(%alone, %b), {cycles(600)}
  %done = f32[1600] all-gather-done(%first)
  ROOT %end = f32[1600] all-gather-done(%second)
}}
"""


def test_concurrent_collectives_share_the_hiding_work() -> None:
    """Cycles that hide two collectives are divided between them."""
    first, second = find_collectives(module(TOGETHER), TWO_SLICES)
    assert (first.hidden_cycles, second.hidden_cycles) == (100 + 300, 300)


def test_collectives_have_bytes_axes_links_and_overlap() -> None:
    """The data axis crosses two slices of four v5e chips, and the tensor axis does not."""
    permute, inside, across, everywhere = find_collectives(module(EXCHANGE), TWO_SLICES)
    assert (permute.kind, permute.bytes, permute.axes) == ("collective-permute", 4000, ("tensor",))
    assert permute.hidden_cycles == 3000
    assert permute.exposed_seconds(1.5e9) == 0.0
    # Four chips form a square without wraparound, so each has a link along two dimensions.
    assert (inside.kind, inside.axes, inside.link, inside.group) == (
        "all-reduce",
        ("tensor",),
        ICI,
        4,
    )
    assert inside.seconds == pytest.approx(2 * (3 / 4 * 4000 / 100e9 + 2 * HOP))
    assert inside.exposed_seconds(1.5e9) == inside.seconds
    assert (across.axes, across.link) == (("data",), DCN)
    assert across.seconds == pytest.approx(2 * 1 / 2 * 4000 / (12.5e9 / 4))
    assert (everywhere.kind, everywhere.bytes, everywhere.dtypes) == ("all-gather", 1600, ("bf16",))
    assert (everywhere.axes, everywhere.link) == (("data", "tensor"), DCN)


ATTRIBUTES = (
    'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.1_0",'
    '_xla_megascale_transfer_type="ALL_REDUCE"}'
)
BETWEEN = f"""
ENTRY %main (a: bf16[1000]) -> bf16[1000] {{
  %a = bf16[1000]{{0}} parameter(0)
  %token = token[] after-all()
  %send = (bf16[1000]{{0}}, u32[], token[]) send(%a, %token), channel_id=1, {ATTRIBUTES}
  %recv = (bf16[1000]{{0}}, u32[], token[]) recv(%token), channel_id=2, {ATTRIBUTES}
  %send-done = token[] send-done(%send), channel_id=1
  %work = bf16[1000]{{0}} multiply(%a, %a), {cycles(600)}
  %recv-done = (bf16[1000]{{0}}, token[]) recv-done(%recv), channel_id=2
  ROOT %sum = bf16[1000]{{0}} get-tuple-element(%recv-done), index=0
}}
"""


@pytest.mark.parametrize(
    ("topology", "groups", "share", "hops"),
    [
        # A chip at the end of a line has one link.
        ("v5e:2x4", [[0, 1, 2, 3], [4, 5, 6, 7]], 3 / 4, 3),
        # Each chip has two links, but four links carry the halves of two groups.
        ("v5e:4x4", [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]], 7 / 16, 4),
        # The groups lie between each other: across the middle, four links carry both.
        ("v5e:4x4", [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]], 7 / 16, 5),
        ("v5e:8x8", [[y + 8 * x for x in range(8)] for y in range(8)], 7 / 8, 7),
        # A ring of 16 chips: two links, and half as far.
        ("v5e:16x16", [[y + 16 * x for x in range(16)] for y in range(16)], 15 / 32, 7.5),
        # A sum of two columns crosses one row's link for both: 8 groups, 8 links.
        ("v5e:8x8", [[8 * x, 8 * x + 7] for x in range(8)], 1 / 2, 7),
        ("v5e:8x8", [[8 * x + y, 8 * x + y + 4] for x in range(8) for y in range(4)], 2, 4),
    ],
)
def test_time_follows_the_links_of_groups(
    topology: str, groups: list[list[int]], share: float, hops: float
) -> None:
    """Groups share links; `share` is the bytes of the array that the busiest link carries."""
    found = parse_topology(topology)
    rows, columns = found.shape
    places = [(x, y, 0) for x in range(rows) for y in range(columns)]
    placement = DevicePlacement(
        topology=found, mesh={"data": len(places)}, coordinates=places, slices=[0] * len(places)
    )
    listed = ",".join("{" + ",".join(map(str, group)) + "}" for group in groups)
    text = (
        "ENTRY %main (a: f32[4096]) -> f32[4096] {\n  %a = f32[4096] parameter(0)\n  ROOT %g = "
        f"f32[4096] all-gather(%a), replica_groups={{{listed}}}, dimensions={{0}}\n}}\n"
    )
    (gather,) = find_collectives(module(text), placement)
    assert gather.seconds == pytest.approx(4 * 4096 * share / 50e9 + hops * HOP)


def test_host_transfers_between_slices_are_counted() -> None:
    placement = dataclasses.replace(TWO_SLICES, mesh={"data": 8, "fsdp": 1, "tensor": 1})
    (found,) = find_collectives(module(BETWEEN), placement)
    assert (found.kind, found.link, found.bytes) == ("all-reduce", DCN, 2000)
    assert (found.axes, found.group, found.dtypes) == (("data",), 2, ("bf16",))
    assert found.hidden_cycles == 600
    alone = 2000 / (12.5e9 / 4)
    assert found.exposed_seconds(1.5e9) == pytest.approx(alone - 600 / 1.5e9)
