"""Whole episodes as RLlib's new API stack writes them: the states of ``SingleAgentEpisode``, as MessagePack.

::

    {"id_": "..", "agent_id": None, "module_id": None, "t_started": 0, "is_terminated": True, "is_truncated": False,
     "observations": {"data": T + 1 values, or one array, "lookback": L, "finalized": .., "space": ..},
     "actions": .., "rewards": .., "infos": .., "extra_model_outputs": {"action_logp": .., ...}, ...}

A part of an episode begins with L values of the part before it, which are left out.

Source: rllib/offline/offline_env_runner.py and rllib/env/{single_agent_episode, utils/infinite_lookback_buffer}.py,
https://github.com/ray-project/ray
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.codecs.message_pack import Closed, unpack
from rlds2buf.core import nest
from rlds2buf.errors import SourceFormatError

__all__ = ["columns_of_item"]


def columns_of_item(data: bytes, *, infos: bool) -> dict[str, nest.Nest]:
    """The columns ``[T, ...]`` of one item, by the names that RLlib has for rows.

    Args:
        data: the message.
        infos: whether to keep the infos, as JSON text.

    Raises:
        SourceFormatError: it is no such message, or what is needed of it is a pickle.
    """
    state = unpack(data)
    if not isinstance(state, dict) or not {"observations", "actions", "rewards"} <= state.keys():
        raise SourceFormatError("not the state of a SingleAgentEpisode (episodes of several agents are not read)")
    observations = _values(state["observations"], "observations")
    actions, rewards = _values(state["actions"], "actions"), _values(state["rewards"], "rewards")
    if not isinstance(rewards, np.ndarray) or rewards.ndim != 1:
        raise SourceFormatError("rewards should hold one number a step")
    steps = len(rewards)
    if not steps:
        return {}
    for name, held, want in (("observations", observations, steps + 1), ("actions", actions, steps)):
        for _, column in nest.flatten(held):
            if not column.ndim or len(column) != want:
                raise SourceFormatError(f"{name} of {column.shape} beside {steps} rewards")
    columns = {
        "obs": nest.map_structure(lambda column: column[:-1], observations),
        "new_obs": nest.map_structure(lambda column: column[1:], observations),
        "actions": actions,
        "rewards": rewards,
        "terminateds": _last(steps, state.get("is_terminated")),
        "truncateds": _last(steps, state.get("is_truncated")),
        "t": int(state.get("t_started") or 0) + np.arange(steps),
    }
    for name, key in (("eps_id", "id_"), ("agent_id", "agent_id"), ("module_id", "module_id")):
        if state.get(key) is not None:
            columns[name] = np.full(steps, str(state[key]).encode(), object)
    return {**_outputs(state.get("extra_model_outputs"), steps), **columns, **(_infos(state, steps) if infos else {})}


def _outputs(buffers: Any, steps: int) -> dict[str, nest.Nest]:
    found = {}
    for name, buffer in (buffers or {}).items():
        column = _values(buffer, name)
        if all(len(leaf) == steps for _, leaf in nest.flatten(column)):
            found[str(name)] = column
        else:
            raise SourceFormatError(f"extra_model_outputs: {name} has not one row for each of {steps} steps")
    return found


def _infos(state: Mapping[str, Any], steps: int) -> dict[str, np.ndarray]:
    buffer = state.get("infos")
    data = buffer.get("data") if isinstance(buffer, dict) else None
    if not isinstance(data, list):
        raise SourceFormatError("the infos are a pickle, which is never loaded; open without infos=True")
    data = data[int(buffer.get("lookback") or 0) :] if isinstance(buffer, dict) else data
    # Info t + 1 came of step t; the first one, of the reset, has no row of its own here.
    texts = [json.dumps(info or {}, sort_keys=True, default=_plain) for info in data[1 : steps + 1]]
    if len(texts) != steps:
        raise SourceFormatError(f"{len(data)} infos beside {steps} rewards")
    return {"infos": np.array([*(text.encode() for text in texts), None], object)[:-1]}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


def _last(steps: int, flag: Any) -> np.ndarray:
    column = np.zeros(steps, np.bool_)
    column[-1] = bool(flag)
    return column


def _values(buffer: Any, name: str) -> nest.Nest:
    """The values of a buffer, without those that are a look back."""
    if not isinstance(buffer, dict) or "data" not in buffer:
        raise SourceFormatError(f"{name}: not the state of a buffer")
    lookback = buffer.get("lookback") or 0
    if not isinstance(lookback, int) or lookback < 0:
        raise SourceFormatError(f"{name}: a lookback of {lookback!r}")
    data = buffer["data"]
    found = _stacked(data, name) if isinstance(data, list) else _whole(data, name)
    return nest.map_structure(lambda column: column[lookback:], found)


def _whole(data: Any, name: str) -> nest.Nest:
    """One array, or a dict or tuple (a list, by now) of such."""
    if isinstance(data, dict):
        return {str(key): _whole(child, f"{name}/{key}") for key, child in data.items()}
    if isinstance(data, list):
        return tuple(_whole(child, f"{name}/{i}") for i, child in enumerate(data))
    return _array(data, name)


def _stacked(values: list[Any], name: str) -> nest.Nest:
    """A list of values, one a step, as columns."""
    if values and isinstance(values[0], dict):
        if not all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
            raise SourceFormatError(f"{name}: its values have different keys")
        return {str(key): _stacked([value[key] for value in values], f"{name}/{key}") for key in values[0]}
    try:
        return _array(np.array(values) if values else np.zeros(0), name)
    except (ValueError, OverflowError, TypeError) as cause:
        if isinstance(cause, SourceFormatError):
            raise
        raise SourceFormatError(f"{name}: values of different shapes ({cause})") from cause


def _array(value: Any, name: str) -> np.ndarray:
    if isinstance(value, Closed):
        raise SourceFormatError(f"{name}: an array of objects, which is a pickle and never loaded")
    if not isinstance(value, np.ndarray) or value.ndim == 0 or value.dtype.kind not in "biuf":
        raise SourceFormatError(f"{name}: its values are no numbers")
    return np.array(value, value.dtype.newbyteorder("="))
