"""What a learner asks of a buffer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.engine import Drawing, Request
from rlds2buf.buffers.keys import as_keys
from rlds2buf.buffers.read.prefetch import Batches
from rlds2buf.buffers.read.reader import Reader
from rlds2buf.buffers.read.view import View
from rlds2buf.buffers.select.samplers import item_slots, transition_slots
from rlds2buf.buffers.tensors import converter
from rlds2buf.core import nest
from rlds2buf.core.arguments import integer, named_well
from rlds2buf.core.sample import Sample, Trajectory, Transition
from rlds2buf.errors import UnknownKey

__all__ = ["Sampling"]


class Sampling:
    """The part of a :class:`~rlds2buf.buffers.buffer.Buffer` that reads."""

    _contents: Contents
    _reader: Reader
    _drawing: Drawing
    _view: View
    _rng: np.random.Generator
    _lock: threading.RLock | Any

    def sample(
        self,
        batch_size: int,
        *,
        n_step: int | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        beta: float | None = None,
        source_id: int | None = None,
        replace: bool = True,
        concatenate: bool = False,
        decode: bool | None = None,
    ) -> Sample:
        """Draw a batch.

        A buffer whose items are sequences, episodes or fragments gives whole ones, as a Trajectory
        as long as the longest of them, unless `n_step` or `sequence_length` is given: then what
        starts at a random step of each item, and ends with it at the latest.

        Args:
            batch_size: B, how many items.
            n_step: horizon of the transitions; a shorter one is used where an episode, a source or
                the stored data end, and ``steps`` and ``bootstrap_discount`` say so.
            gamma: discount per step.
            sequence_length: T, for a Trajectory ``[B, T, ...]`` of consecutive transitions instead,
                padded behind the end of the episode.
            burn_in: up to that many earlier steps before each sequence, at positions of their own
                (see :class:`~rlds2buf.core.sample.Trajectory`): never of another episode or source.
            initial_state: the recurrent state before each sequence's first step: ``"stored"`` with
                the data, or ``"zeros"``.
            state: the extras it is in, each step's being the state before it, for example
                ``("lstm/h", "lstm/c")``.
            beta: exponent of a prioritized buffer's importance weights, in place of its schedule's.
            source_id: only transitions of this data source.
            replace: whether one item may be drawn more than once.
            concatenate: give whole items one behind the other, as a Transition of all their steps;
                `info` has one entry for each step.
            decode: whether pictures that are kept as files (fields with ``FieldSpec.image``) come as
                pixels, ``[B, height, width, channels]``, or as they are, ``[B] object`` of bytes; None
                does as the buffer's `view` says, and decodes unless told otherwise. Arrays of varying
                shape come as ``[B] object`` of arrays.

        Returns:
            Sample: `data` a Transition or Trajectory, `info` with keys and probabilities.

        Raises:
            NotEnoughItems: the buffer is empty, or without replacement smaller than `batch_size`.
            ReplayError: a picture is damaged.
            TooLarge: the batch does not fit into the memory that is free.
            ValueError: an argument is out of range.
        """
        view = self._view.changed(n_step, gamma, sequence_length, burn_in, initial_state, state, decode)
        return self._drawing.one(self._rng, batch_size, Request(view, beta, source_id, replace, concatenate))

    def sample_many(self, count: int, batch_size: int, **options: Any) -> list[Sample]:
        """Draw several batches at once: the same ones as as many calls of :meth:`sample`, in less time.

        Args:
            count: how many.
            batch_size: B, items of each.
            options: as for :meth:`sample`.

        Returns:
            As many Samples; those of one call may share memory with one another, and with nothing else.

        Raises:
            NotEnoughItems, ValueError: as for :meth:`sample`.
        """
        return self._drawing.many(self._rng, count, batch_size, self._request(**options))

    def batches(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        to: str = "numpy",
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> Batches[Sample]:
        """Iterate over batches that are drawn in the background.

        The draws come of a generator of their own that starts from the buffer's.  So they are
        the same, under a seed, for every `prefetch`, and of what else is sampled meanwhile; as long
        as nobody changes the buffer: what is drawn ahead knows nothing of later additions and
        priorities.

        Args:
            batch_size: B, items of each.
            prefetch: how many batches are kept ready; 0 draws when asked, without a thread.
            to: ``"numpy"``, or tensors of ``"torch"``, ``"tf"`` or ``"jax"``, which borrow the memory
                where the framework can; strings stay arrays.
            steps: how many batches; None for no end.
            together: how many are drawn by one call, see :meth:`sample_many`.
            pin_memory: for ``"torch"``: put tensors into page-locked memory, if there is CUDA.
            device: for ``"torch"``: where tensors go.
            timeout: seconds to wait for a batch before giving up.
            options: as for :meth:`sample`.

        Returns:
            An iterator of Samples; a context manager too, and ``close()`` ends it early.

        Raises:
            MissingDependency: the framework is not installed.
            NotEnoughItems: as for :meth:`sample`; raised by the iterator.
            ReplayError: no batch came within the time-out; raised by the iterator.
            ValueError: an argument is out of range.

        >>> import numpy as np
        >>> from rlds2buf import Episode, make_circular, spec_of
        >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5), discount=np.ones(5))
        >>> buffer = make_circular(spec_of(ep), 100, seed=0)
        >>> keys = buffer.add(ep)
        >>> [float(batch.data.reward.sum()) for batch in buffer.batches(8, steps=3, prefetch=2)]
        [8.0, 8.0, 8.0]
        """
        convert = converter(to, device=device, pin_memory=pin_memory)
        request = self._request(**options)
        batch_size = integer("batch_size", batch_size, 1)
        with self._lock:
            rng = np.random.default_rng(self._rng.integers(1 << 63, size=4))
        drawing = self._drawing  # not the buffer's method: see Batches on who holds whom

        def draw(count: int) -> list[Sample]:
            return drawing.many(rng, count, batch_size, request)

        return Batches(draw, convert, steps=steps, prefetch=prefetch, together=together, timeout=timeout)

    def get(
        self,
        keys: npt.ArrayLike,
        *,
        n_step: int | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> Transition | Trajectory:
        """The items of these keys, as :meth:`sample` would give them, and with the goals they had.

        A key of a later step of an item gives the item from there on.

        Raises:
            UnknownKey: a key was never given out, or its item has left.
        """
        wanted = as_keys(keys)
        view = self._view.changed(n_step, gamma, sequence_length, burn_in, initial_state, state, decode)
        self._reader.require_room(len(wanted), view)
        with self._lock:
            self._contents.store.require_whole()
            held = self._contents.holds(wanted)
            if not held.all():
                some = ", ".join(str(key) for key in wanted[~held][:5])
                raise UnknownKey(f"{int((~held).sum())} of {len(wanted)} keys are not in the buffer: {some}")
            data = self._reader.read(self._contents.slots_of(wanted), view, self._contents.waiting.values())
        unpacked: Transition | Trajectory = self._reader.unpack(data, view.decode)
        return unpacked

    @overload
    def all(self, *, concatenate: Literal["batch"] = "batch", decode: bool | None = None) -> Transition: ...
    @overload
    def all(self, *, concatenate: Literal["sequence"], decode: bool | None = None) -> Trajectory: ...
    @overload
    def all(self, *, concatenate: None, decode: bool | None = None) -> list[Transition]: ...
    def all(
        self, *, concatenate: str | None = "batch", decode: bool | None = None
    ) -> Transition | Trajectory | list[Transition]:
        """Every transition held, oldest first, copied.

        Args:
            concatenate: ``"batch"``: one Transition ``[N, ...]``; ``"sequence"``: one Trajectory
                ``[1, N, ...]`` of them all, whose ends of episodes only `is_done` tells; None: a list
                of N Transitions without leading axes (slow, and meant for a look).
            decode: as for :meth:`sample`; False gives what :meth:`add` takes.
        """
        if concatenate not in ("batch", "sequence", None):
            raise ValueError(f"concatenate must be 'batch', 'sequence' or None, got {concatenate!r}")
        with self._lock:
            self._contents.store.require_whole()
            slots = transition_slots(self._contents.store)
            if concatenate == "sequence":
                data: Any = self._reader.along(slots[None])
            else:
                data = self._reader.transitions(slots)
        rows: Any = self._reader.unpack(data, self._view.decode if decode is None else decode)
        if concatenate is not None:
            return rows  # type: ignore[no-any-return]  # as the overloads say
        return [
            nest.map_structure(lambda column, i=i: None if column is None else column[i], rows)
            for i in range(len(slots))
        ]

    def keys(self) -> np.ndarray:
        """Keys ``uint64`` of every item held, oldest first."""
        with self._lock:
            self._contents.store.require_whole()
            return self._contents.keys_of(item_slots(self._contents.store))

    @named_well()
    def _request(
        self,
        *,
        n_step: int | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        beta: float | None = None,
        source_id: int | None = None,
        replace: bool = True,
        concatenate: bool = False,
        decode: bool | None = None,
    ) -> Request:
        view = self._view.changed(n_step, gamma, sequence_length, burn_in, initial_state, state, decode)
        return Request(view, beta, source_id, replace, concatenate)
