"""Items put together again, row by row."""

from __future__ import annotations

from rlds2buf.formats.reverb.protocol.chunks import decode_tensor

__all__ = ["runs_of"]


def runs_of(store):
    """``[(episode id, first step, [row, ...])]``: runs of consecutive steps that any item holds, by id and step.

    A row is the list of its columns' bytes.  Every item must be a run of steps with columns of one length.
    """
    rows = {}
    for item in store.items:
        places, columns = set(), []
        for column in item.flat_trajectory.columns:
            values = []
            where = []
            for part in column.chunk_slices:
                chunk = store.chunks[part.chunk_key]
                tensor = decode_tensor(chunk.data.tensors[part.index], delta_encoded=chunk.delta_encoded)
                for row in range(part.offset, part.offset + part.length):
                    values.append(tensor[row].tobytes())
                    where.append((chunk.sequence_range.episode_id, chunk.sequence_range.start + row))
            places.add(tuple(where))
            columns.append(values)
        assert len(places) == 1
        for number, place in enumerate(places.pop()):
            rows[place] = [column[number] for column in columns]
    runs = []
    for (episode, step), row in sorted(rows.items()):
        if runs and runs[-1][0] == episode and runs[-1][1] + len(runs[-1][2]) == step:
            runs[-1][2].append(row)
        else:
            runs.append((episode, step, [row]))
    return runs
