"""Serialized ``tf.train.Example`` messages in every encoding that is legal."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.formats.reverb import messages

__all__ = ["FLOAT", "INT64", "VALUES", "any_encoding"]

INT64 = st.one_of(st.integers(0, 127), st.integers(-(2**63), 2**63 - 1), st.just(-1))
FLOAT = st.floats(width=32)
VALUES = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=6), max_size=8)),
    st.tuples(st.just("bytes"), st.binary(max_size=4).flatmap(lambda v: st.lists(st.just(v), max_size=8))),
    st.tuples(st.just("float"), st.lists(FLOAT, max_size=8)),
    st.tuples(st.just("int64"), st.lists(INT64, max_size=12)),
)
UNKNOWN_FIELD = st.sampled_from(
    [b"\x20\x05", messages.delimited(9, b"later"), b"\x25" + bytes(4), b"\x21" + bytes(8), b"\xfa\x01\x01x"]
)


@st.composite
def any_encoding(draw: st.DrawFn) -> bytes:
    """A valid message in an encoding that a writer may choose but none does."""
    entries = []
    for key, (kind, values) in draw(st.dictionaries(st.text(max_size=5), VALUES, max_size=4)).items():
        cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=3)))
        runs = [values[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
        lists = [messages.value_list(kind, run, packed=draw(st.booleans())) for run in runs]
        number = messages.FIELD_OF_KIND[kind]
        if draw(st.booleans()):  # several list messages, which merge
            value = b"".join(messages.delimited(number, part) for part in lists)
        else:
            value = messages.delimited(number, draw(st.sampled_from([b"", b"\x20\x05"])).join(lists))
        parts = [messages.delimited(1, key.encode()), messages.delimited(2, value)]
        parts += draw(st.lists(UNKNOWN_FIELD, max_size=1))
        entries.append(messages.delimited(1, b"".join(draw(st.permutations(parts)))))
    entries += draw(st.lists(UNKNOWN_FIELD, max_size=1))
    return messages.delimited(1, b"".join(entries)) + draw(st.sampled_from([b"", b"\x20\x05"]))
