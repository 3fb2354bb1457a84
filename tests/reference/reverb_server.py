"""What a Reverb server does with an insert stream, in the plainest way.

It keeps the chunks that a request names, gathers each item row by row, and forgets nothing that is
in its table.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.formats.reverb.protocol.chunks import decode_tensor
from rlds2buf.formats.reverb.protocol.messages import message

__all__ = ["NaiveStream", "NaiveTable"]


class NaiveTable:
    """Items by key, in the order of their first insert: ``(priority, columns)``."""

    def __init__(self, name):
        self.name = name
        self.items = {}
        self.updates = 0


class NaiveStream:
    """One ``InsertStream`` call into a table."""

    def __init__(self, table):
        self.table = table
        self.chunks = {}
        self.received = []  # sizes of the messages

    def feed(self, data):
        """Take one message; returns the keys that a server would acknowledge."""
        request = message("InsertStreamRequest", data)
        assert request.chunks or request.items
        self.received.append(len(data))
        for chunk in request.chunks:
            assert chunk.data_tensors_len == len(chunk.data.tensors)
            tensors = [decode_tensor(tensor, delta_encoded=chunk.delta_encoded) for tensor in chunk.data.tensors]
            rows = chunk.sequence_range.end - chunk.sequence_range.start + 1
            assert all(len(tensor) == rows for tensor in tensors)
            self.chunks.setdefault(chunk.chunk_key, tensors)
        for item in request.items:
            assert item.table == self.table.name
            columns = [self._column(column) for column in item.flat_trajectory.columns]
            if item.key in self.table.items:
                self.table.updates += 1
                columns = self.table.items[item.key][1]
            self.table.items[item.key] = (item.priority, columns)
        if request.items:
            keep = list(request.keep_chunk_keys)
            assert len(set(keep)) == len(keep)
            assert set(keep) <= set(self.chunks), "keeps a chunk that it never sent"
            self.chunks = {key: self.chunks[key] for key in keep}
        return [item.key for item in request.items]

    def _column(self, column):
        rows = []
        for part in column.chunk_slices:
            tensor = self.chunks[part.chunk_key][part.index]
            assert part.length >= 1 and part.offset + part.length <= len(tensor)
            for row in range(part.offset, part.offset + part.length):
                rows.append(tensor[row])
        if column.squeeze:
            assert len(rows) == 1
            return rows[0]
        return np.stack(rows)
