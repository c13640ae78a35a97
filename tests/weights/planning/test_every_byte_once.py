"""Any parallel layout on both sides: every byte arrives once, from one who holds it, and the work is shared."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.weights.planning.grid import EngineGrid, TrainerGrid
from miles_core.weights.planning.predict import EngineGroup, Placing, predict_plan

MODELS = st.fixed_dictionaries(
    {
        "layers": st.integers(2, 4),
        "hidden": st.sampled_from([1, 4]),
        "kv_heads": st.sampled_from([1, 2, 8]),
        "experts": st.sampled_from([4, 8]),
        "vocab": st.integers(1, 200),
    }
)
SIZES = st.sampled_from([1, 2, 4])


@st.composite
def trainers(draw):
    tp, pp, dp = draw(SIZES), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    ep = draw(st.sampled_from([one for one in (1, 2, 4) if tp * dp % one == 0]))
    etp = draw(st.sampled_from([one for one in (1, 2, 4) if tp * dp % (ep * one) == 0]))
    return TrainerGrid(tp=tp, pp=pp, dp=dp, ep=ep, etp=etp)


@st.composite
def engine_groups(draw):
    sizes = draw(st.lists(st.tuples(SIZES, st.sampled_from([1, 2])), min_size=1, max_size=2, unique=True))
    groups = []
    for tp, pp in sizes:
        ep = draw(st.sampled_from([one for one in (1, 2, 4) if tp % one == 0]))
        groups.append(EngineGroup(f"tp{tp}pp{pp}", EngineGrid(tp=tp, pp=pp, ep=ep), draw(st.integers(1, 3))))
    return groups


def best_possible(found):
    """The least that the busiest sender must send, if boxes could be divided at will: no set can shed its own work."""
    holders = {}
    for rank, layout in enumerate(found.sources):
        for placement in layout.placements:
            holders.setdefault(placement.tensor.name, []).append((placement.region, rank))
    work = Counter()
    for stream in found.plan.streams:
        for box in stream.boxes:
            able = frozenset(
                rank
                for region, rank in holders[box.tensor.name]
                if all(a <= c and d <= b for (a, b), (c, d) in zip(region, box.region, strict=True))
            )
            work[able] += box.nbytes * len(stream.receivers)
    ranks = sorted({rank for able in work for rank in able})
    subsets = (frozenset(one) for size in range(1, len(ranks) + 1) for one in combinations(ranks, size))
    return max(sum(n for able, n in work.items() if able <= one) / len(one) for one in subsets)


@settings(max_examples=60, deadline=None)
@given(MODELS, trainers(), engine_groups(), st.integers(1, 4000))
def test_each_receiver_holds_its_boxes_after_one_write_of_each_byte(toy, sizes, trainer, groups, bound):
    model = toy.toy_model(**sizes)
    found = predict_plan(model, trainer, groups, bound)
    assert found.problems == {}
    arrays = toy.checkpoint(model)
    expected, memories = {}, {}
    for group in groups:
        tables, layouts = toy.engine_layouts(model, group)
        for receiver in group.receivers:
            expected[receiver] = layouts[receiver.rank]
            memories[receiver] = toy.Memory(tables[receiver.rank])
    toy.carry_out(found.plan, arrays, found.sources, memories)
    for receiver, layout in expected.items():
        memory = memories[receiver]
        counts = np.concatenate(list(memory.writes.values()))
        assert set(np.unique(counts)) <= {0, 1}
        assert np.count_nonzero(counts == 0) == layout.padding
        for placement in layout.placements:
            wanted = toy.box_of(arrays[placement.tensor.name], placement.region)
            assert np.array_equal(memory.view(placement), wanted), placement.label


@settings(max_examples=60, deadline=None)
@given(MODELS, trainers(), engine_groups(), st.integers(1, 4000))
def test_buckets_keep_the_bound_and_the_boxes_of_a_parameter_together(toy, sizes, trainer, groups, bound):
    plan = predict_plan(toy.toy_model(**sizes), trainer, groups, bound).plan
    assert [bucket.index for bucket in plan.buckets] == list(range(len(plan.buckets)))
    for number, stream in enumerate(plan.streams):
        homes, sizes = {}, Counter()
        for bucket in stream.buckets:
            assert bucket.stream == number
            assert bucket.nbytes == sum(box.nbytes for box in bucket.placements)
            assert bucket.nbytes <= bound or len(bucket.placements) == 1
            for box in bucket.placements:
                homes.setdefault(box.parameter, set()).add(bucket.index)
                sizes[box.parameter] += box.nbytes
        assert all(len(homes[name]) == 1 for name, size in sizes.items() if size <= bound)


@settings(max_examples=60, deadline=None)
@given(MODELS, trainers().filter(lambda one: one.ranks <= 8), engine_groups())
def test_the_busiest_sender_has_little_more_to_send_than_it_must(toy, sizes, trainer, groups):
    found = predict_plan(toy.toy_model(**sizes), trainer, groups, 1 << 20)
    sent = Counter()
    largest = 0
    for stream in found.plan.streams:
        for row in range(len(stream.receivers)):
            for column, box in enumerate(stream.boxes):
                sent[0 if stream.senders is None else int(stream.senders[row, column])] += box.nbytes
                largest = max(largest, box.nbytes)
    assert max(sent.values()) <= 1.25 * best_possible(found) + largest


@settings(max_examples=40, deadline=None)
@given(MODELS, trainers(), engine_groups(), st.sampled_from([1, 2, 4]))
def test_a_sender_on_the_receivers_machine_is_preferred(toy, sizes, trainer, groups, per_node):
    found = predict_plan(toy.toy_model(**sizes), trainer, groups, 1 << 20, Placing(per_node, colocated=True))
    holders = {}
    for rank, layout in enumerate(found.sources):
        for placement in layout.placements:
            holders.setdefault(placement.tensor.name, []).append((placement.region, rank))
    for stream in found.plan.streams:
        if stream.senders is None:
            continue
        for row, receiver in enumerate(stream.receivers):
            here = found.nodes.receivers[receiver]
            for column, box in enumerate(stream.boxes):
                able = {
                    found.nodes.senders[rank]
                    for region, rank in holders[box.tensor.name]
                    if all(a <= c and d <= b for (a, b), (c, d) in zip(region, box.region, strict=True))
                }
                assert found.nodes.senders[stream.senders[row, column]] == here or here not in able
