"""Programs written by hand: shapes, trips of loops, cycles, collectives."""

import textwrap

import pytest

from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.collectives import (
    DCN,
    ICI,
    DevicePlacement,
    device_groups,
    find_collectives,
)
from bert_jax.planning.compilation.cycles import count_cycles
from bert_jax.planning.compilation.execution import Program
from bert_jax.planning.compilation.hlo import parse_hlo, parse_shape

CYCLES = 'backend_config={{"window_config":{{"estimated_cycles":"{}"}}}}'


def cycles(count: int) -> str:
    return CYCLES.format(count)


def module(text: str) -> Program:
    return Program.of(parse_hlo(textwrap.dedent(text)))


# A loop as the compiler writes a windowed product: from 0 to 8 in steps of two, the bound carried
# in the state, the step a sum of two; inside it a scan of 3, and a fused condition.
NESTED = f"""
HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/bert_jax/model/layers.py"
2 "/usr/lib/flax/nnx.py"

FunctionNames
1 "dense"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=93 end_line=93 column=1 end_column=2}}
2 {{file_name_id=2 function_name_id=1 line=5 end_line=5 column=1 end_column=2}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=1}}

%fused_product (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0:T(8,128)}} parameter(0)
  ROOT %convolution.1 = f32[8,8]{{1,0:T(8,128)}} convolution(%p, %p), dim_labels=bf_io->bf
}}

%fused_compare (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}}

%inner_condition (state: (s32[], f32[8,8])) -> pred[] {{
  %state = (s32[], f32[8,8]) parameter(0)
  %three = s32[] constant(3)
  %at = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] fusion(%at, %three), kind=kLoop, calls=%fused_compare
}}

%inner_body (state.1: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {{
  %state.1 = (s32[], f32[8,8]) parameter(0)
  %one = s32[] constant(1)
  %at.1 = s32[] get-tuple-element(%state.1), index=0
  %next = s32[] add(%at.1, %one)
  %x = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%state.1), index=1
  %product = f32[8,8]{{1,0:T(8,128)}} fusion(%x), kind=kOutput, calls=%fused_product, \
metadata={{op_name="jit(step)/dot_general" stack_frame_id=2}}, {cycles(100)}
  ROOT %tuple.1 = (s32[], f32[8,8]) tuple(%next, %product)
}}

%outer_condition (state.2: (u32[], f32[8,8], u32[])) -> pred[] {{
  %state.2 = (u32[], f32[8,8], u32[]) parameter(0)
  %at.2 = u32[] get-tuple-element(%state.2), index=0
  %bound = u32[] get-tuple-element(%state.2), index=2
  ROOT %greater = pred[] compare(%bound, %at.2), direction=GT
}}

%outer_body (state.3: (u32[], f32[8,8], u32[])) -> (u32[], f32[8,8], u32[]) {{
  %state.3 = (u32[], f32[8,8], u32[]) parameter(0)
  %one.1 = u32[] constant(1)
  %at.3 = u32[] get-tuple-element(%state.3), index=0
  %half = u32[] add(%at.3, %one.1)
  %whole = u32[] add(%half, %one.1)
  %bound.1 = u32[] get-tuple-element(%state.3), index=2
  %x.1 = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%state.3), index=1
  %zero = s32[] constant(0)
  %first = s32[] copy(%zero)
  %enter = (s32[], f32[8,8]) tuple(%first, %x.1)
  %while.1 = (s32[], f32[8,8]) while(%enter), condition=%inner_condition, body=%inner_body
  %y = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%while.1), index=1
  %norm = f32[8,8]{{1,0:T(8,128)}} add(%y, %y), {cycles(7)}
  ROOT %tuple.2 = (u32[], f32[8,8], u32[]) tuple(%whole, %norm, %bound.1)
}}

%cheap (c: f32[8,8]) -> f32[8,8] {{
  %c = f32[8,8] parameter(0)
  ROOT %negate = f32[8,8] negate(%c), {cycles(5)}
}}

%dear (d: f32[8,8]) -> f32[8,8] {{
  %d = f32[8,8] parameter(0)
  ROOT %exponential = f32[8,8] exponential(%d), {cycles(50)}
}}

ENTRY %main (x.2: f32[8,8], flag: pred[]) -> f32[8,8] {{
  %x.2 = f32[8,8]{{1,0:T(8,128)}} parameter(0)
  %flag = pred[] parameter(1)
  %zero.1 = u32[] constant(0)
  %eight = u32[] constant(8)
  %enter.1 = (u32[], f32[8,8], u32[]) tuple(%zero.1, %x.2, %eight)
  %while.2 = (u32[], f32[8,8], u32[]) while(%enter.1), condition=%outer_condition, body=%outer_body
  %y.1 = f32[8,8]{{1,0:T(8,128)}} get-tuple-element(%while.2), index=1
  %branch = f32[8,8] conditional(%flag, %y.1, %y.1), branch_computations={{%cheap, %dear}}
  ROOT %bits = u32[1024]{{0:T(128)}} rng-bit-generator(%y.1), algorithm=rng_default
}}
"""


def test_a_loops_body_counts_as_often_as_it_runs() -> None:
    program = module(NESTED)
    trips = {found.instruction.name: found.trips for found in program.executed}
    assert (trips["while.2"], trips["while.1"], trips["product"]) == (1, 4, 12)
    found = count_cycles(program, bytes_per_cycle=100.0, schedules={})
    assert found.unknown_loops == ()
    # Each fusion once, the costlier branch, and the random bits by their bytes: 4096 out, 256 in.
    assert found.scheduled == 12 * 100 + 4 * 7 + 50
    assert found.by_bytes == round((4096 + 256) / 100)
    assert found.by_kind["matrix products"] == 1200
    assert found.by_kind["random bits"] == found.by_bytes
    assert found.total == found.scheduled + found.by_bytes == sum(found.by_kind.values())


def test_a_trip_count_that_the_compiler_writes_is_taken() -> None:
    text = NESTED.replace(
        "body=%outer_body", 'body=%outer_body, backend_config={"known_trip_count":{"n":"11"}}'
    )
    trips = {found.instruction.name: found.trips for found in module(text).executed}
    assert trips["product"] == 33


def test_a_loop_that_the_data_end_is_named_and_counts_once() -> None:
    """The bound comes in from outside."""
    text = NESTED.replace("%eight = u32[] constant(8)", "%eight = u32[] convert(%flag)")
    found = count_cycles(module(text), bytes_per_cycle=100.0, schedules={})
    assert found.unknown_loops == ("while.2",)
    assert found.by_kind["matrix products"] == 300


def test_arrays_know_their_bytes_and_whether_they_lie_in_hbm() -> None:
    result, stacked = parse_shape(
        "(bf16[16,128]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/f32[]{:T(128)})"
    )
    assert (result.bytes, result.in_hbm) == (4096, False)
    assert (stacked.bytes, stacked.in_hbm) == (4, True)


REDUCE = "ROOT %r = f32[] all-reduce(%a), channel_id=1, replica_groups={}, to_apply=%add"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("{{0,2},{1,3},{4,6},{5,7}}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ],
)
def test_groups_are_read_in_every_form(groups: str, expected: list[list[int]]) -> None:
    text = f"ENTRY %main (a: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  {REDUCE}\n}}\n"
    program = module(text.replace("replica_groups={}", f"replica_groups={groups}"))
    assert device_groups(program.executed[-1].instruction, devices=8) == expected


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


# A sum of which each device keeps its quarter, and a gather that runs beside a product: what starts
# it, what it runs beside and what ends it each hold it.
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


def test_collectives_inside_fusions_are_what_they_do_and_count_once() -> None:
    scatter, gather = find_collectives(module(IN_FUSIONS), TWO_SLICES)
    assert (scatter.kind, scatter.name, scatter.bytes) == ("reduce-scatter", "share", 1600)
    assert scatter.seconds == pytest.approx(3 / 4 * 1600 / 100e9)  # an all-reduce takes twice that
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


def test_collectives_in_flight_together_share_the_work_that_hides_them() -> None:
    """Each alone behind all of it would count the network twice."""
    first, second = find_collectives(module(TOGETHER), TWO_SLICES)
    assert (first.hidden_cycles, second.hidden_cycles) == (100 + 300, 300)


def test_collectives_have_bytes_axes_links_and_overlap() -> None:
    """Two slices of four v5e chips: the data axis crosses them, the tensor axis does not."""
    permute, inside, across, everywhere = find_collectives(module(EXCHANGE), TWO_SLICES)
    assert (permute.kind, permute.bytes, permute.axes) == ("collective-permute", 4000, ("tensor",))
    assert permute.overlaps
    assert permute.hidden_cycles == 3000
    assert permute.exposed_seconds(1.5e9) == 0.0
    # Four chips in a square without joined ends: one link's bandwidth along each of two dimensions.
    assert (inside.kind, inside.axes, inside.link, inside.group) == (
        "all-reduce",
        ("tensor",),
        ICI,
        4,
    )
    assert inside.seconds == pytest.approx(2 * 3 / 4 * 4000 / 100e9)
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


def test_what_goes_between_slices_is_seen_though_the_host_carries_it() -> None:
    placement = DevicePlacement(
        topology=parse_topology("v5e:2x2"),
        mesh={"data": 8, "fsdp": 1, "tensor": 1},
        coordinates=[(x, y, 0) for _ in range(2) for x in range(2) for y in range(2)],
        slices=[0, 0, 0, 0, 1, 1, 1, 1],
    )
    (found,) = find_collectives(module(BETWEEN), placement)
    assert (found.kind, found.link, found.bytes) == ("all-reduce", DCN, 2000)
    assert (found.axes, found.group, found.dtypes) == (("data",), 2, ("bf16",))
    assert found.hidden_cycles == 600
    alone = 2000 / (12.5e9 / 4)
    assert found.exposed_seconds(1.5e9) == pytest.approx(alone - 600 / 1.5e9)
