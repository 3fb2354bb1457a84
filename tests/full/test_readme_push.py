"""The README's lines about Reverb, run as they stand but for the port."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.cli.run import first_line
from tests.data import ROOT
from tests.full.quiet import reverb

README = (ROOT / "README.md").read_text(encoding="utf-8")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def test_serve_then_push(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    port = free_port()
    serve, push = (
        [sys.executable, "-m", *shlex.split(line.replace("8123", str(port)), comments=True)]
        for line in block.splitlines()
    )
    assert serve[3] == "serve" and push[3] == "push"
    how = {"cwd": tmp_path, "env": {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}}
    demo = [sys.executable, "-m", "rlds2buf", "demo"]
    subprocess.run(demo, check=True, timeout=120, capture_output=True, **how)
    server = subprocess.Popen([*serve, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **how)
    try:
        served = json.loads(first_line(server))
        done = subprocess.run([*push, "--json"], capture_output=True, text=True, timeout=120, **how)
        assert done.returncode == 0, done.stderr
        pushed = json.loads(done.stdout)
        size = reverb.Client(f"localhost:{port}").server_info()["replay"].current_size
        # The same items twice: pushed by serve, updated by push.
        assert size == pushed["items"] > 1000 and pushed["agrees"]
        assert served["table"] == "replay"
        again = subprocess.run([*push, "--json"], capture_output=True, text=True, timeout=120, **how)
        assert json.loads(again.stdout)["resumed"] == size
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert server.returncode in (0, 130)
