"""Specs for TF-Agents' agents from logged data: real agents are built with them, and train from a table."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from rlds2buf import Episode, push
from rlds2buf.core.spec import FieldSpec
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.reverb.tf_specs import action_spec, collect_data_spec, time_step_spec
from tests.full.pushed import episodes
from tests.full.quiet import reverb, reverb_replay_buffer, tensor_spec, tf


def logged(rows=30, discrete=False, **changes):
    rng = np.random.default_rng(rows)
    action = rng.integers(0, 3, rows) if discrete else rng.uniform(-0.5, 0.25, (rows, 2)).astype(np.float32)
    action[-1] = 77  # never taken
    reward = rng.standard_normal(rows).astype(np.float32)
    observation = rng.standard_normal((rows, 4)).astype(np.float32)
    return Episode(**{"observation": observation, "action": action, "reward": reward, **changes})


class Told(MemorySource):
    """Limits that a source tells."""

    @property
    def spec(self):
        limited = FieldSpec((2,), np.float32, low=-1.0, high=[1.0, 2.0])
        endless = FieldSpec((4,), np.float32, low=-np.inf, high=np.inf)
        return dataclasses.replace(super().spec, action=limited, observation=endless)


def test_limits_come_from_the_source():
    source = Told([logged()])
    spec = action_spec(source)
    assert isinstance(spec, tensor_spec.BoundedTensorSpec) and spec.dtype == tf.float32 and spec.shape == (2,)
    assert np.broadcast_to(spec.minimum, 2).tolist() == [-1, -1] and spec.maximum.tolist() == [1, 2]
    assert type(time_step_spec(source).observation) is tf.TensorSpec  # limits that are not finite say nothing
    assert action_spec([logged()]) == tf.TensorSpec((2,), tf.float32)


def test_limits_come_from_the_data_without_actions_never_taken():
    spec = action_spec([logged(30), logged(20)], limits="data")
    taken = np.concatenate([logged(n).action[:-1] for n in (30, 20)])
    np.testing.assert_array_equal(spec.minimum, taken.min(axis=0))
    np.testing.assert_array_equal(spec.maximum, taken.max(axis=0))
    spec = action_spec([logged(30, discrete=True)], limits="data")
    assert (spec.minimum, spec.maximum, spec.dtype) == (0, 2, tf.int64)


def test_limits_are_given():
    spec = action_spec([logged()], limits=(-1, [1.0, 2.0]))
    assert spec.minimum.tolist() == [-1, -1] and spec.maximum.tolist() == [1, 2]
    nested = logged(action={"a": np.zeros((30, 2), np.float32), "b": np.zeros(30, np.int64)})
    spec = action_spec([nested], limits=({"a": -1, "b": 0}, {"a": 1, "b": 5}))
    assert spec["b"].maximum == 5 and spec["a"].minimum.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("nonsense", "limits must be"),
        (3, "limits must be"),
        (("a", "b"), "action: float32"),
        ((-1, [1, 2, 3]), "action: float32"),
        ((2, 1), "is above"),
        (({"a": 1}, {"a": 2}), "nested in another way"),
    ],
)
def test_limits_that_do_not_fit(limits, words):
    with pytest.raises(ValueError, match=words):
        action_spec([logged()], limits=limits)


def test_data_without_what_is_needed():
    with pytest.raises(ValueError, match="no action was taken"):
        action_spec([logged(1)], limits="data")
    with pytest.raises(ValueError, match="no extra field 'x'"):
        collect_data_spec([logged()], policy_info="x")
    with pytest.raises(ValueError, match="have no action"):
        action_spec([logged(action=None)])


def test_a_continuous_agent_trains_from_a_table_of_these_specs():
    from tf_agents.agents.ddpg import actor_network, critic_network
    from tf_agents.agents.td3 import td3_agent

    given = [logged(30), logged(40)]
    steps, actions = time_step_spec(given), action_spec(given, limits=(-1, 1))
    agent = td3_agent.Td3Agent(
        steps,
        actions,
        actor_network.ActorNetwork(steps.observation, actions, fc_layer_params=(8,)),
        critic_network.CriticNetwork((steps.observation, actions), joint_fc_layer_params=(8,)),
        tf.keras.optimizers.Adam(),
        tf.keras.optimizers.Adam(),
    )
    agent.initialize()
    spec = collect_data_spec(given, limits=(-1, 1))
    assert spec == agent.collect_data_spec
    assert train(agent, spec, given) > 0


def test_a_discrete_agent_trains_from_a_table_of_these_specs():
    from tf_agents.agents.dqn import dqn_agent
    from tf_agents.networks import q_network

    given = [logged(30, discrete=True), logged(40, discrete=True)]
    steps, actions = time_step_spec(given), action_spec(given, limits="data")
    agent = dqn_agent.DqnAgent(
        steps,
        actions,
        q_network=q_network.QNetwork(steps.observation, actions, fc_layer_params=(8,)),
        optimizer=tf.keras.optimizers.Adam(),
    )
    agent.initialize()
    spec = collect_data_spec(given, limits="data")
    assert spec == agent.collect_data_spec
    assert train(agent, spec, given) > 0


def train(agent, spec, given):
    """Fill a table with that signature, and take some steps; the loss of the last."""
    uniform, fifo, limiter = reverb.selectors.Uniform(), reverb.selectors.Fifo(), reverb.rate_limiters.MinSize(1)
    signature = tensor_spec.add_outer_dim(spec)
    server = reverb.Server([reverb.Table("replay", uniform, fifo, 1000, limiter, signature=signature)])
    push(given, f"localhost:{server.port}", "replay")
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        spec, sequence_length=2, table_name="replay", local_server=server, rate_limiter_timeout_ms=1000
    )
    data = buffer.as_dataset(sample_batch_size=16, num_steps=2)
    losses = [float(agent.train(experience).loss) for experience, _ in itertools.islice(data, 3)]
    server.stop()
    assert np.isfinite(losses).all()
    return losses[-1]


def test_nested_observations_and_policy_info():
    given = [e.replace(extras={"log_prob": np.zeros(e.num_steps, np.float32)}) for e in episodes(9, 4, nested=True)]
    spec = collect_data_spec(given, policy_info="log_prob")
    assert set(spec.observation) == {"z", "image", "more"} and spec.policy_info == tf.TensorSpec((), tf.float32)
