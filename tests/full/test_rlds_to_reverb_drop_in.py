"""TF-Agents' own tests of its util, from the installed package, with our module in place of theirs."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types

import pytest

from rlds2buf import rlds_to_reverb
from tests.full.quiet import tf_agents_rlds_to_reverb


def _their_tests() -> types.ModuleType:
    """Their test module, loaded afresh, with its name for the util rebound to our module."""
    spec = importlib.util.find_spec("tf_agents.replay_buffers.rlds_to_reverb_test")
    assert spec is not None and spec.loader is not None
    spec.name = "tests.full.their_rlds_to_reverb_test"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    importlib.machinery.SourceFileLoader(module.__name__, spec.origin or "").exec_module(module)
    assert module.rlds_to_reverb is tf_agents_rlds_to_reverb
    module.rlds_to_reverb = rlds_to_reverb
    return module


_theirs = _their_tests()


@pytest.fixture(autouse=True)
def only_ours_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their functions raise if anything still reaches them."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("TF-Agents' own function was called")

    for name in rlds_to_reverb.__all__:
        monkeypatch.setattr(tf_agents_rlds_to_reverb, name, refuse)


class TestPush(_theirs.RldsToReverbTest):  # type: ignore[name-defined,misc]
    test_session = None


class TestConvert(_theirs.RldsToTrajectoriesTest):  # type: ignore[name-defined,misc]
    test_session = None


def test_all_of_their_test_classes_ran() -> None:
    theirs = [c for _, c in inspect.getmembers(_theirs, inspect.isclass) if c.__module__ == _theirs.__name__]
    assert {c.__name__ for c in theirs} == {"RldsToReverbTest", "RldsToTrajectoriesTest"}
    assert issubclass(TestPush, theirs[0]) and issubclass(TestConvert, theirs[1])


def test_signatures_begin_with_theirs() -> None:
    for name in rlds_to_reverb.__all__:
        theirs = inspect.signature(getattr(_originals, name)).parameters.values()
        ours = list(inspect.signature(getattr(rlds_to_reverb, name)).parameters.values())
        for parameter, mine in zip(theirs, ours, strict=False):
            assert (mine.name, mine.default, mine.kind) == (parameter.name, parameter.default, parameter.kind)
        # What we add can't be mistaken for an argument of theirs.
        assert all(extra.kind is inspect.Parameter.KEYWORD_ONLY for extra in ours[len(list(theirs)) :])


_originals = types.SimpleNamespace(**{name: getattr(tf_agents_rlds_to_reverb, name) for name in rlds_to_reverb.__all__})
