"""A forked child can use the buffers it has, and draws what nobody else draws."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.data import ROOT

START = """
import json, multiprocessing, os, sys, threading, time
import numpy as np
import rlds2buf
from tests.buffers.numbered import *

def filled(make=rlds2buf.make_circular, **options):
    buffer = make(SPEC, 1000, **options)
    buffer.add(episode(0, 900))
    return buffer

def in_forks(work, count=2):
    found = []
    for _ in range(count):
        end, mine = os.pipe()
        if os.fork() == 0:
            os.write(mine, json.dumps(work()).encode())
            os._exit(0)
        os.close(mine)
        with open(end) as file:
            found.append(json.loads(file.read()))
        os.wait()
    return found
"""


def run(code: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START + code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


DRAWS = {
    "circular": "b = filled(seed=7); draw = lambda: b.sample(5).info.key.tolist()",
    "none": "b = filled(); draw = lambda: b.sample(5).info.key.tolist()",
    "batches": "b = filled(seed=7); draw = lambda: next(b.batches(5)).info.key.tolist()",
    "prioritized": "b = filled(rlds2buf.make_prioritized, seed=7); draw = lambda: b.sample(5).info.key.tolist()",
    "mixed": "b = rlds2buf.MixedBuffers([filled(seed=1), filled(seed=2)], seed=3)\n"
    "draw = lambda: b.sample(20).info.source_id.tolist()",
    "lockstep": "b = rlds2buf.make_multi_agent({'a': rlds2buf.make_circular(SPEC, 900)}, mode='lockstep', seed=3)\n"
    "b.add({'a': episode(0, 900)}, episode_id=0, agent_index=0)\ndraw = lambda: b.sample(5)['a'].info.key.tolist()",
    "reservoir": "b = rlds2buf.make_reservoir(SPEC, 30, seed=7); b.add(episode(0, 60))\n"
    "draw = lambda: (b.add(episode(100, 500)), b.keys().tolist())[1]",
    "costs": "b = rlds2buf.make_cost_replay(SPEC, 900, seed=7)\nt = transitions(0, 500)\n"
    "b.store(observation=t.observation, action=t.action, reward=t.reward, cost=0.0, note=t.extras['note'],\n"
    "        next_observation=t.next_observation)\ndraw = lambda: b.sample(5).info.key.tolist()",
    "loaded": "import tempfile; d = tempfile.mkdtemp() + '/b'; filled(seed=7).save(d); b = rlds2buf.load_buffer(d)\n"
    "draw = lambda: b.sample(5).info.key.tolist()",
}


EACH = """
def drawn(code):
    names = dict(globals())
    exec(code, names)
    draw = names["draw"]
    return [*in_forks(draw), draw(), *in_forks(lambda: in_forks(draw))]

print(json.dumps({kind: drawn(code) for kind, code in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def twice() -> list[dict[str, Any]]:
    """What each kind draws in two processes: in two children, the parent, and their children's children."""
    return [run(EACH, json.dumps(DRAWS)) for _ in range(2)]


@pytest.mark.parametrize("kind", DRAWS)
def test_children_draw_apart_and_runs_repeat(kind: str, twice: list[dict[str, Any]]) -> None:
    first, again = (found[kind] for found in twice)
    everyone = [*first[:3], *first[3], *first[4]]
    assert len({str(keys) for keys in everyone}) == 7
    assert (first == again) is (kind != "none")


def test_the_parent_draws_as_if_there_were_no_children() -> None:
    whole, forking = (run(f"{DRAWS['circular']}\n{fork}\nprint(json.dumps(draw()))") for fork in ("", "in_forks(draw)"))
    assert whole == forking


@pytest.mark.parametrize("make", ["make_circular", "make_reservoir", "make_prioritized"])
def test_children_of_a_buffer_at_work_do_not_hang_and_find_it_whole(make: str) -> None:
    code = f"""
buffer = rlds2buf.{make}(SPEC, 3000, seed=0)
buffer.add(episode(0, 900))
stop = threading.Event()
def busy():
    for i in range(1_000_000):
        if stop.is_set():
            return
        buffer.add(episode(1000 * i, 400))
        buffer.sample(64)
threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
bad = 0
for i in range(20):
    child = os.fork()
    if child == 0:
        try:
            buffer.check_valid()
            buffer.sample(32)
            buffer.add(episode(0, 30))
            buffer.check_valid()
        except BaseException:
            os._exit(1)
        os._exit(0)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        status = -1
    bad += status != 0
stop.set()
print(bad)
os._exit(0) if sys.stdout.flush() else os._exit(0)
"""
    assert run(code) == 0


def test_batches_of_the_parent_are_refused() -> None:
    code = """
buffer = filled(seed=7)
def use():
    try:
        next(ahead)
    except rlds2buf.ReplayError as error:
        return str(error)
found = []
for prefetch in (0, 2):
    ahead = buffer.batches(5, prefetch=prefetch)
    next(ahead)
    found += in_forks(use, 1)
    next(ahead)
    ahead.close()
print(json.dumps(found))
"""
    assert all("call batches() here" in says for says in run(code))
