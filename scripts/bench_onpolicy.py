#!/usr/bin/env python3
"""Advantages and rollout buffers against OmniSafe's.

Three pieces of work: GAE of rewards and costs over a million steps in 1000 paths, storing and
getting a rollout of 64 environments x 2048 steps, and V-trace over [256, 100].  Both sides get the
same numbers, and their results are compared before any time is printed.

The peer is OmniSafe's own buffer code where it is installed::

    pip install torch gymnasium && pip install omnisafe --no-deps

(without its simulators its packages can't be imported as a whole, so the few files that are needed
are loaded past their ``__init__``).  Where only PyTorch is installed the peer is a restatement of the
published algorithm: a Python loop over the elements of a tensor; the output says which it was.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench import Bench

import rlds2buf
from rlds2buf import FieldSpec, StepSpec, returns

GAMMA, LAM = 0.99, 0.95
OBSERVATION, ACTION = 17, 6
PATH = ("reward", "value_r", "cost", "value_c")
SPEC = StepSpec(observation=FieldSpec((OBSERVATION,), np.float32), action=FieldSpec((ACTION,), np.float32))


class Peer:
    """OmniSafe's buffers, or what stands for them.

    Attributes:
        name: for the output.
        buffers: the classes OnPolicyBuffer and VectorOnPolicyBuffer, or None if only the estimators
            are restated.
    """

    name: str
    buffers: tuple[Any, Any] | None = None

    def path(self, columns: list[Any], last: Any) -> tuple[Any, Any]:
        """``(adv_r, adv_c)`` of one path, given the columns that PATH names."""
        raise NotImplementedError

    def vtrace(self, pi: Any, mu: Any, values: Any, rewards: Any) -> tuple[Any, Any]:
        """``(target, advantage)`` of one sequence; values and rewards have one entry more."""
        raise NotImplementedError


class OmniSafe(Peer):
    """The installed package's own code."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("omnisafe")
        assert spec is not None and spec.submodule_search_locations
        root = Path(next(iter(spec.submodule_search_locations)))
        for package in ("", "common", "common.buffer", "utils"):
            name = f"omnisafe.{package}".rstrip(".")
            stub = types.ModuleType(name)
            stub.__path__ = [str(root.joinpath(*package.split(".")) if package else root)]
            sys.modules[name] = stub
        on_policy = importlib.import_module("omnisafe.common.buffer.onpolicy_buffer").OnPolicyBuffer
        vector = importlib.import_module("omnisafe.common.buffer.vector_onpolicy_buffer").VectorOnPolicyBuffer
        self.buffers = (on_policy, vector)
        self.vtrace_function = on_policy._calculate_v_trace
        from importlib.metadata import version

        self.name = f"OmniSafe {version('omnisafe')}"

    def vtrace(self, pi: Any, mu: Any, values: Any, rewards: Any) -> tuple[Any, Any]:
        target, advantage, _ = self.vtrace_function(pi, values, rewards, mu, GAMMA, 1.0, 1.0)
        return target, advantage


class Restated(Peer):
    """The published formulas as loops over tensors, one element at a time."""

    name = "a torch restatement of OmniSafe's algorithm"

    def path(self, columns: list[Any], last: Any) -> tuple[Any, Any]:
        import torch

        reward, value_r, cost, value_c = (torch.cat([column, last]) for column in columns)
        self._discounted(reward, GAMMA)
        return self._gae(reward, value_r), self._gae(cost, value_c)

    def vtrace(self, pi: Any, mu: Any, values: Any, rewards: Any) -> tuple[Any, Any]:
        import torch

        weight = torch.clamp(pi / mu, max=1.0)
        target = values[:-1].clone()
        later = values[-1]
        for t in range(len(pi) - 1, -1, -1):
            error = weight[t] * (rewards[t] + GAMMA * values[t + 1] - values[t])
            target[t] += error + GAMMA * weight[t] * (later - values[t + 1])
            later = target[t]
        following = torch.cat([target[1:], values[-1:]])
        return target, weight * (rewards[:-1] + GAMMA * following - values[:-1])

    def _gae(self, reward: Any, value: Any) -> Any:
        return self._discounted(reward[:-1] + GAMMA * value[1:] - value[:-1], GAMMA * LAM)

    @staticmethod
    def _discounted(column: Any, discount: float) -> Any:
        out = column.double()
        total = out[-1]
        for t in range(len(out) - 2, -1, -1):
            total = out[t] + discount * total
            out[t] = total
        return out


def find_peer() -> Peer | None:
    """OmniSafe, its restatement, or None where there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    if importlib.util.find_spec("omnisafe") is not None and importlib.util.find_spec("gymnasium") is not None:
        return OmniSafe()
    return Restated()


def median(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds of `work`, after one run that is not counted (kernels compile, pages come)."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def once(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one run, and what it gave."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def bench_gae(peer: Peer | None, paths: int, length: int, repeats: int) -> dict[str, Any]:
    """Rewards and costs of `paths` paths of `length` steps, each cut with a value of 0.5."""
    rng = np.random.default_rng(0)
    columns = {name: rng.standard_normal(paths * length).astype(np.float32) for name in PATH}
    cut = np.zeros(paths * length, np.bool_)
    cut[length - 1 :: length] = True
    final = np.full(paths, 0.5, np.float32)

    def ours() -> list[np.ndarray]:
        out = []
        for numbers, value in (("reward", "value_r"), ("cost", "value_c")):
            following = returns.successor_values(columns[value], truncated=cut, final_values=final)
            result = returns.gae(
                columns[numbers], columns[value], gamma=GAMMA, lam=LAM, truncated=cut, next_values=following
            )
            out.append(result.advantage)
        return out

    buffered = gae_through_the_buffer(columns, length)
    row: dict[str, Any] = {
        "work": f"GAE, rewards and costs, {paths * length:,} steps in {paths:,} paths",
        "bar": 20,
        "ours": median(ours, repeats),
        "ours, through the buffer (store, finish_path, get)": median(buffered, repeats),
    }
    if peer is not None:
        row["peer"], theirs = peer_gae(peer, columns, length)
        for mine, kept, other in zip(ours(), buffered(), theirs, strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-4)
            np.testing.assert_allclose(kept, other, atol=1e-4)
    return row


def gae_through_the_buffer(columns: dict[str, np.ndarray], length: int) -> Callable[[], list[np.ndarray]]:
    """Each path stored as columns and finished with 0.5; gives ``[adv_r, adv_c]``."""
    steps = len(columns["reward"])
    buffer = rlds2buf.make_on_policy(
        SPEC, steps, gamma=GAMMA, lam=LAM, standardize_reward=False, standardize_cost=False
    )
    observation = np.zeros((length, OBSERVATION), np.float32)
    action = np.zeros((length, ACTION), np.float32)

    def work() -> list[np.ndarray]:
        for start in range(0, steps, length):
            part = {name: column[start : start + length] for name, column in columns.items()}
            buffer.store(observation=observation, action=action, **part)
            buffer.finish_path(0.5, 0.5)
        rollout = buffer.get()
        return [rollout.adv_r, rollout.adv_c]

    return work


def peer_gae(peer: Peer, columns: dict[str, np.ndarray], length: int) -> tuple[float, list[np.ndarray]]:
    """Seconds of the peer's loop over the paths (storing not counted), and ``[adv_r, adv_c]``."""
    import torch

    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    last = torch.full((1,), 0.5)
    steps = len(columns["reward"])
    starts = range(0, steps, length)
    if peer.buffers is None:
        seconds, parts = once(lambda: [peer.path([tensors[n][i : i + length] for n in PATH], last) for i in starts])
        return seconds, [torch.cat([part[k] for part in parts]).numpy() for k in range(2)]
    other = peer.buffers[0](*boxes(), steps, GAMMA, LAM, LAM, "gae")
    for name, tensor in tensors.items():
        other.data[name][:] = tensor

    def finish() -> None:
        for start in starts:
            other.ptr = start + length
            other.finish_path(last, last)

    seconds, _ = once(finish)
    return seconds, [other.data["adv_r"].numpy(), other.data["adv_c"].numpy()]


def bench_store(peer: Peer | None, num_envs: int, steps: int, repeats: int) -> dict[str, Any]:
    """A rollout stored step by step and fetched: theirs without finish_path, ours with everything."""
    rng = np.random.default_rng(0)
    shapes = {"observation": (OBSERVATION,), "action": (ACTION,), **dict.fromkeys((*PATH, "logp"), ())}
    data = {name: rng.standard_normal((steps, num_envs, *shape)).astype(np.float32) for name, shape in shapes.items()}
    rows = [{name: column[t] for name, column in data.items()} for t in range(steps)]
    row: dict[str, Any] = {
        "work": f"store {num_envs} environments x {steps} steps, get",
        "bar": 5,
        "ours": median(rollout_of(rows, num_envs, None), repeats),
    }
    if peer is None:
        return row
    import torch

    tensors = [{name: torch.from_numpy(column) for name, column in fields.items()} for fields in rows]
    ours = rollout_of(tensors, num_envs, "cpu")
    row["ours, tensors in and out"] = median(ours, repeats)
    if peer.buffers is None:
        row["note"] = "no peer: only OmniSafe's own buffer will do here"
        return row
    row["peer"], row["peer, with finish_path"], batch = peer_rollout(peer, tensors, num_envs)
    mine = ours()
    for column, name in ((mine.observation, "obs"), (mine.adv_r, "adv_r"), (mine.target_value_c, "target_value_c")):
        np.testing.assert_allclose(column.numpy(), batch[name].numpy(), atol=1e-4)
    return row


def rollout_of(rows: list[dict[str, Any]], num_envs: int, device: str | None) -> Callable[[], Any]:
    """Our buffer's whole life: every row stored, all paths finished with 0.5, everything fetched."""
    buffer = rlds2buf.make_on_policy(SPEC, len(rows), num_envs=num_envs, gamma=GAMMA, lam=LAM, device=device)

    def work() -> Any:
        for fields in rows:
            buffer.store(**fields)
        buffer.finish_path(0.5, 0.5)
        return buffer.get()

    return work


def peer_rollout(peer: Peer, rows: list[dict[str, Any]], num_envs: int) -> tuple[float, float, dict[str, Any]]:
    """Seconds of store and get, the same with finish_path, and the batch."""
    import torch

    assert peer.buffers is not None
    other = peer.buffers[1](*boxes(), len(rows), GAMMA, LAM, LAM, "gae", 0.0, True, True, num_envs)
    theirs = {"observation": "obs", "action": "act"}
    renamed = [{theirs.get(name, name): tensor for name, tensor in fields.items()} for fields in rows]

    def fill() -> None:
        for fields in renamed:
            other.store(**fields)

    def finish() -> None:
        for env in range(num_envs):
            other.finish_path(torch.full((1,), 0.5), torch.full((1,), 0.5), env)

    stored, _ = once(fill)
    finished, _ = once(finish)
    got, batch = once(other.get)
    return stored + got, stored + finished + got, batch


def bench_vtrace(peer: Peer | None, batch: int, steps: int, repeats: int) -> dict[str, Any]:
    """`batch` sequences of `steps`; theirs one after another, as its function takes one."""
    rng = np.random.default_rng(0)
    pi, mu = (rng.uniform(0.05, 1.0, (batch, steps)).astype(np.float32) for _ in range(2))
    values, rewards = (rng.standard_normal((batch, steps + 1)).astype(np.float32) for _ in range(2))

    def ours() -> Any:
        return returns.vtrace(
            rewards[:, :-1], values[:, :-1], pi / mu, gamma=GAMMA, last_value=values[:, -1], time_axis=1
        )

    row: dict[str, Any] = {"work": f"V-trace over [{batch}, {steps}]", "bar": 5, "ours": median(ours, 10 * repeats)}
    if peer is None:
        return row
    import torch

    sequences = list(zip(*(torch.from_numpy(column) for column in (pi, mu, values, rewards)), strict=True))
    row["peer"], result = once(lambda: [peer.vtrace(*sequence) for sequence in sequences])
    mine = ours()
    np.testing.assert_allclose(mine.target, torch.stack([target for target, _ in result]).numpy(), atol=1e-4)
    np.testing.assert_allclose(mine.advantage, torch.stack([gain for _, gain in result]).numpy(), atol=1e-4)
    return row


def boxes() -> tuple[Any, Any]:
    """The peer's observation and action space."""
    from gymnasium.spaces import Box

    return Box(-1, 1, (OBSERVATION,), np.float32), Box(-1, 1, (ACTION,), np.float32)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, quick=0)
    tenth = 10 if bench.options.quick else 1
    peer = find_peer()
    rows = [
        bench_gae(peer, 1000 // tenth, 1000, bench.rounds),
        bench_store(peer, 64, 2048 // tenth, bench.rounds),
        bench_vtrace(peer, 256 // tenth, 100, bench.rounds),
    ]
    for row in rows:
        times = {name: [1 / seconds] for name, seconds in row.items() if name.startswith(("ours", "peer"))}
        bench.show(row["work"] + (f"   ({row['note']})" if "note" in row else ""), times, "us")
        for name in times if peer else ():
            if name.startswith("ours"):
                bench.ratio(row["work"] + name[4:], times, name, "peer", least=row["bar"], name=peer.name)
    if peer is None:
        print("(PyTorch is not installed, no peer)", file=sys.stderr)
    bench.finish()


if __name__ == "__main__":
    main()
