from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.check.boundaries import boundary_faults, seams, well_formed
from tests.reference import boundaries as naive


def patterns(length: int):
    for bits in itertools.product([False, True], repeat=3 * length):
        flags = np.array(bits, bool).reshape(3, length)
        yield flags[0], flags[1], flags[2]


@pytest.mark.parametrize("length, cases, good", [(1, 8, 2), (2, 64, 2), (3, 512, 2), (4, 4096, 2)])
def test_every_flag_pattern_up_to_four_rows(length, cases, good):
    seen = accepted = 0
    for first, last, terminal in patterns(length):
        seen += 1
        faults = boundary_faults(first, last, terminal)
        where = (first.tolist(), last.tolist(), terminal.tolist())
        assert {f.rule: f.step for f in faults} == naive.faults(first, last, terminal), where
        assert len({f.rule for f in faults}) == len(faults), where
        assert [f.step for f in faults] == sorted(f.step for f in faults), where
        ok = naive.accepts(first, last, terminal)
        assert well_formed(first, last, terminal) == ok == (not faults), where
        accepted += ok
    assert (seen, accepted) == (cases, good)


@given(st.integers(1, 40).flatmap(lambda n: st.lists(st.tuples(*[st.booleans()] * 3), min_size=n, max_size=n)))
def test_longer_patterns_agree_with_the_row_by_row_machine(rows):
    first, last, terminal = (np.array(column) for column in zip(*rows, strict=True))
    faults = boundary_faults(first, last, terminal)
    assert {f.rule: f.step for f in faults} == naive.faults(first, last, terminal)
    assert well_formed(first, last, terminal) == naive.accepts(first, last, terminal)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_seams_are_last_rows_before_first_rows(rows):
    first, last = (np.array(column) for column in zip(*rows, strict=True))
    expected = [t for t in range(len(rows) - 1) if last[t] and first[t + 1]]
    assert seams(first, last).tolist() == expected


def test_a_fault_counts_its_rows_and_names_the_first():
    flags = np.zeros((3, 9), bool)
    flags[0, 0] = flags[1, -1] = True
    flags[2, 5:] = True
    (fault,) = boundary_faults(*flags)
    assert (fault.rule, fault.step, fault.count, fault.path) == ("terminal-inside", 5, 3, "is_terminal")
    assert fault.message == "is_terminal without is_last (3 rows)"
