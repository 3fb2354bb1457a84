"""Numpy's twins of the kernels give what these give, to the last bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from rlds2buf.codecs.tfrecord.frames import frame, length_crcs
from rlds2buf.core.row_flags import BREAK, FINAL_ROW, LINKED, OWN_NEXT
from rlds2buf.kernels import (
    chain,
    chain_back,
    digits,
    frames,
    gather,
    goals,
    priorities,
    returns,
    ring,
    row_hash,
    runs,
    sum_tree,
    windows,
)
from rlds2buf.kernels.compiled import Kernel

SEEDS = range(20)


def assert_twins(kernel: Any, *arguments: Any) -> Any:
    """Both leave the same in every array, and return the same; the arrays as they left them."""
    assert isinstance(kernel, Kernel) and kernel.twin is not None
    mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
    for some in (mine, theirs):  # of another alignment than the original
        for old, new in zip(arguments, some, strict=True):
            assert not isinstance(old, np.ndarray) or new.flags.writeable
    got, expected = kernel.twin(*mine), kernel.compile()(*theirs)
    assert got == expected or (got != got and expected != expected)
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if isinstance(one, np.ndarray):
            assert one.tobytes() == other.tobytes(), f"argument {number}"
    return mine


def some_flags(rng: np.random.Generator, capacity: int) -> np.ndarray:
    flags = rng.choice([0, 0, 0, 0, 1, 2, FINAL_ROW], capacity).astype(np.uint8)
    for bit in (BREAK, LINKED, OWN_NEXT):
        flags |= (rng.random(capacity) < 0.1).astype(np.uint8) * np.uint8(bit)
    return flags


@pytest.mark.parametrize("seed", SEEDS)
def test_ring(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(1, 50))
    count, head = int(rng.integers(1, capacity + 1)), int(rng.integers(capacity))
    slots = rng.permutation(capacity).astype(np.uint32)
    uniforms = np.append(rng.random(30), [0.0, np.nextafter(1.0, 0.0)])
    assert_twins(ring.draw_uniform, slots, head, count, uniforms, np.empty(32, np.int64), np.zeros((3, 32)))
    assert_twins(ring.keys_of, rng.integers(0, capacity, 9), capacity, head, 1 << 40, np.empty(9, np.uint64))


@pytest.mark.parametrize("seed", SEEDS)
def test_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, batch, limit = int(rng.integers(1, 30)), int(rng.integers(0, 20)), int(rng.integers(1, 9))
    flags, links = some_flags(rng, capacity), rng.integers(0, capacity, capacity)
    if seed % 3 == 0:
        flags &= ~np.uint8(LINKED)
        links = links[:0]
    starts = rng.integers(0, capacity, batch)
    out, steps = np.empty((batch, limit), np.int64), np.zeros(batch, np.int32)
    assert_twins(chain.walk, flags, links, starts, out, steps)
    back, oldest = rng.integers(0, capacity, len(links)), int(rng.integers(capacity))
    assert_twins(chain_back.walk_back, flags, links, back, oldest, starts, out, steps)
    if len(links):
        assert_twins(chain_back.note_links, flags, links, rng.permutation(capacity)[: batch // 2], back)
    for dtype in (np.float32, np.float64):
        discount = rng.random(capacity).astype(dtype)
        steps, bootstrap = np.zeros(capacity, np.int32), np.zeros(capacity, np.float32)
        assert_twins(chain.finish, flags, discount, 0.99, steps, bootstrap)


@pytest.mark.parametrize("seed", SEEDS)
def test_gather(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, batch = int(rng.integers(1, 20)), int(rng.integers(0, 12))
    sizes = [int(size) for size in rng.choice([0, 1, 2, 3, 7, 8, 12, 31, 64, 100, 128, 300], 6)]
    columns = [rng.integers(0, 256, (capacity, size), np.uint8) for size in sizes]
    addresses = np.array([column.ctypes.data for column in columns], np.int64)
    ends = np.cumsum([-(-size * batch // gather.ALIGN) * gather.ALIGN for size in sizes])
    offsets = np.append(0, ends[:-1]).astype(np.int64)
    choice = rng.integers(0, 4, len(sizes)).astype(np.uint8)
    slots, last = rng.integers(0, capacity, (2, batch))
    found = []
    for act in (gather.gather_rows.twin, gather.gather_rows.compile()):
        out = np.zeros(int(ends[-1]) + gather.ALIGN, np.uint8)
        skip = act(addresses, np.array(sizes), choice, slots, last, capacity, out, offsets)
        found.append(out[skip : skip + int(ends[-1])].tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, batch = int(rng.integers(1, 30)), int(rng.integers(0, 12))
    flags, links = some_flags(rng, capacity), rng.integers(0, capacity, capacity)
    back, oldest = rng.integers(0, capacity, capacity), int(rng.integers(capacity))
    if seed % 3 == 0:
        flags &= ~np.uint8(LINKED)
        links, back = links[:0], back[:0]
    chains = flags, links, back, oldest
    widths = rng.integers(1, 5, 4)
    edges = np.concatenate([[0], np.cumsum(widths)])
    offsets, anchor = rng.integers(-7, 8, edges[-1]), rng.integers(0, 2, 4)
    reach = rng.integers(0, 3, 4).astype(np.uint8)
    anchors = rng.integers(0, capacity, (2, batch))
    rows, places = np.zeros((2, batch * int(edges[-1])), np.int64)
    found = assert_twins(windows.find_rows, *chains, anchors, anchor, reach, offsets, edges, rows, places)[-2]
    slots = anchors[0]
    assert_twins(windows.count_before, *chains, slots, np.zeros(batch, np.int64))
    assert_twins(windows.longest_run, *chains, np.arange(capacity), int(rng.integers(1, 40)))
    some = np.where(found < 0, ~found, found)[: batch * int(edges[1])].reshape(batch, int(edges[1]))
    for dtype in (np.float32, np.float64, np.int64, np.bool_):
        reward = (rng.random(capacity) * 3).astype(dtype)
        assert_twins(windows.earnings, flags, links, reward, some, np.zeros(some.shape))

    sizes = [int(size) for size in rng.choice([0, 1, 2, 3, 7, 8, 12, 31, 64, 100, 128, 300], 6)]
    columns, own = rng.integers(0, 256, (2, capacity, max(sizes) + 1), np.uint8)
    columns, own = ([np.ascontiguousarray(each[:, :size]) for size in sizes] for each in (columns, own))
    group = rng.integers(0, 4, len(sizes))
    ends = np.cumsum(
        [-(-size * batch * int(widths[g]) // gather.ALIGN) * gather.ALIGN for size, g in zip(sizes, group, strict=True)]
    )
    starts = np.append(0, ends[:-1]).astype(np.int64)
    addresses = np.array([column.ctypes.data for column in columns], np.int64)
    nexts = np.array([column.ctypes.data if i % 2 else 0 for i, column in enumerate(own)], np.int64)
    copied = []
    for act in (windows.gather_windows.twin, windows.gather_windows.compile()):
        out = np.zeros(int(ends[-1]) + gather.ALIGN, np.uint8)
        skip = act(addresses, nexts, np.array(sizes), group, flags, found, edges * batch, out, starts)
        copied.append(out[skip : skip + int(ends[-1])].tobytes())
    assert copied[0] == copied[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_goals(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(0, 20))
    chosen, met = rng.random((2, batch)) < 0.5
    arrays = rng.random((2, batch, 5)).astype(np.float32)
    assert_twins(goals.put, arrays[0], arrays[1], int(rng.integers(0, 3)), rng.random((batch, 2)), chosen)
    ends = rng.integers(0, 3, batch).astype(np.uint8)
    rewards, reward, discount, bootstrap = rng.random((4, batch)).astype(np.float32)
    assert_twins(goals.judge, chosen, rewards, met, 0.9, reward, ends, discount, bootstrap)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_digits(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, np.iinfo(dtype).max, int(rng.integers(0, 400)), dtype, endpoint=True)
    width = bits.itemsize * 8
    sign, every = 1 << (width - 1), (1 << width) - 1
    turn = np.array([[sign, sign, every], [sign, sign, sign], [sign, 0, 0]][seed % 3], dtype)
    size = 1 << int(rng.integers(1, min(16, width) + 1))
    low = int(rng.integers(0, width - size.bit_length() + 2))
    assert_twins(digits.count_digits, bits, turn, low, rng.integers(0, 9, size))
    is_wanted = rng.random(size) < rng.choice([0, 0.2, 1])
    assert_twins(digits.pick_digits, bits, turn, low, is_wanted, np.zeros(len(bits) + 3, dtype), 2)


def tree_of(rng: np.random.Generator) -> sum_tree.SumTree:
    tree = sum_tree.SumTree(int(rng.choice([1, 2, 15, 16, 17, 300, 5000])))
    values = rng.random(tree.capacity) ** 8 * (rng.random(tree.capacity) < 0.8)
    values[int(rng.integers(tree.capacity))] = 1.0
    tree.set(np.arange(tree.capacity), values)
    return tree


@pytest.mark.parametrize("seed", SEEDS)
def test_sum_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = tree_of(rng)
    indices = rng.integers(0, tree.capacity, 40)
    assert_twins(sum_tree.write_leaves, tree.nodes, tree.offsets, indices, rng.random(40))
    assert_twins(sum_tree.write_leaves, tree.nodes, tree.offsets, indices[:0], rng.random(0))
    assert_twins(sum_tree.refresh_least, tree.nodes, tree.offsets, indices)
    assert_twins(sum_tree.sum_before, tree.nodes, tree.offsets, int(indices[0]))
    targets = rng.random(60) * tree.total
    targets[:3] = 0.0, np.nextafter(tree.total, 0.0), tree.nodes[0]
    assert_twins(sum_tree.descend, tree.nodes, tree.offsets, targets, np.empty(60, np.int64))
    # Rounding may leave a target beyond the last child.
    assert_twins(sum_tree.descend, tree.nodes, tree.offsets, np.full(4, 2 * tree.total), np.empty(4, np.int64))


@pytest.mark.parametrize("seed", SEEDS)
def test_priorities(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = tree_of(rng)
    priority = rng.random(tree.capacity)
    first, beta = int(rng.integers(tree.capacity)), float(rng.choice([0.0, 0.4, 1.0, 3.7]))
    for least in (0.0, 1e-9):
        slots, facts = np.empty(256, np.int64), np.zeros((3, 256))
        facts = (tree.nodes, tree.offsets, first, priority, rng.random(256), 99, beta, least, slots, facts)
        drawn = assert_twins(priorities.draw_prioritized, *facts)[8]
    chosen = (tree.nodes, tree.offsets, first, priority, rng.random(0), 99, beta, 0.0, drawn, np.zeros((3, 256)))
    assert_twins(priorities.draw_prioritized, *chosen)
    values = rng.random(256) * 10.0 ** rng.integers(-9, 9)
    for alpha in (0.0, 0.6, 1.0):
        assert_twins(priorities.update_priorities, tree.nodes, tree.offsets, priority, drawn, values, alpha, 1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(2, 60))
    flags = some_flags(rng, capacity)
    rows, oldest = int(rng.integers(1, capacity + 1)), int(rng.integers(0, 1000))
    slot = oldest % capacity
    for first in (-1, oldest - 3):
        count = runs.scan_runs.compile()(flags, slot, oldest, oldest + rows, first, np.zeros((3, 0), np.int64))
        assert_twins(runs.scan_runs, flags, slot, oldest, oldest + rows, first, np.zeros((3, 0), np.int64))
        found = np.zeros((3, count), np.int64)
        assert_twins(runs.scan_runs, flags, slot, oldest, oldest + rows, first, found)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_picks(seed: int, linked: bool) -> None:
    """Runs of which the oldest steps, or the last one, may not be picked; linked ones are lists of keys."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 6)
    ends = np.cumsum(lengths)
    total, position, oldest = int(ends[-1]), 40, 1000
    base = position if linked else oldest
    found = np.stack([base + ends - lengths, base + ends - 1, base + ends - 1 - rng.integers(0, 2, 6)])
    capacity, gone = total + 5, int(rng.integers(0, int(lengths[0])))
    if linked:
        owner = np.repeat(np.arange(6), lengths)
        keys = oldest + rng.permutation(total)
        members = keys[np.lexsort((keys, owner))]
        held = members[members >= oldest + gone]
        place = np.zeros(capacity, np.int64)
        place[members % capacity] = position + np.arange(total)
    else:
        members, place = np.zeros(0, np.int64), np.zeros(0, np.int64)
        held = np.arange(oldest + gone, oldest + total)
    now = oldest + gone
    slots = rng.choice(held, 30) % capacity
    for strategy in (runs.FINAL, runs.EPISODE, runs.FUTURE):
        for least in (0, 1):
            arguments = (slots, capacity, now % capacity, now, place, members, position, found)
            out = np.zeros((3, 30), np.int64)
            assert_twins(runs.pick_rows, *arguments, rng.random((2, 30)), 0.8, strategy, least, out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", SEEDS)
def test_returns(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    reward, value, successor = rng.standard_normal((3, *shape)).astype(dtype)
    end = rng.choice([0, 0, 0, 1, 2], shape).astype(np.uint8)
    end[-1] = rng.integers(1, 3, shape[1])
    successor[end == 1] = np.nan
    out = [np.zeros(shape, dtype) for _ in range(3)]
    assert_twins(returns.discounted, reward, successor, end, 0.97, out[0])
    assert_twins(returns.gae, reward, value, successor, end, 0.97, 0.9, out[0], out[1])
    ratio = rng.random(shape).astype(dtype) * 3
    ratio[0, 0] = np.nan
    assert_twins(returns.vtrace, reward, value, successor, ratio, end, 0.97, 0.9, 1.0, 1.5, *out)


@pytest.mark.parametrize("seed", SEEDS)
def test_frames(seed: int) -> None:
    """Frames of any lengths, cut anywhere, and with a byte that is another one."""
    rng = np.random.default_rng(seed)
    whole = b"".join(frame(rng.bytes(int(size))) for size in rng.integers(0, 40, int(rng.integers(0, 9))))
    data = np.frombuffer(whole[: int(rng.integers(0, len(whole) + 1))] if seed % 2 else whole, np.uint8).copy()
    if seed % 3 == 0 and len(data):
        data[rng.integers(len(data))] ^= np.uint8(1 << rng.integers(8))
    for most in (0, 3, len(data) // 16):
        found = np.zeros(most + 1, np.int64), np.zeros(most, np.uint32)
        assert_twins(frames.find_frames, data, most, length_crcs(), *found)


@pytest.mark.parametrize("seed", SEEDS)
def test_row_hashes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(0, 40)), int(rng.choice([0, 1, 5, 300]))
    edges = np.sort(np.append(rng.integers(0, rows + 1, 4), [0, rows]))
    words = rng.integers(0, 256, (rows, width)).astype(rng.choice(["u1", "u2", "u4", "u8"]))
    keys = rng.integers(0, 2**63, (2, width)).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    assert_twins(row_hash.hash_rows, words, edges, keys, np.zeros((len(edges) - 1, 2), np.uint64))
