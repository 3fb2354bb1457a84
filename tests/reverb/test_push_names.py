"""``rlds2buf.push`` and ``rlds2buf.serve`` are functions, whichever module was imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.data import ROOT


@pytest.mark.parametrize(
    "first", ["", "import rlds2buf.reverb.push, rlds2buf.reverb.serve", "from rlds2buf.reverb.push import PushReport"]
)
def test_functions_win_over_their_modules(first):
    code = f"""
{first}
import rlds2buf
for function, arguments in [(rlds2buf.push, ("no-such-path", "localhost:1", "t")), (rlds2buf.serve, ("no-such-path",))]:
    try:
        function(*arguments)
    except (rlds2buf.SourceNotFound, rlds2buf.MissingDependency) as error:
        print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[0] == "SourceNotFound" and len(done.stdout.split()) == 2, done.stderr
