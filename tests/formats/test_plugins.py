"""A format of another package, installed as any package is: ``tests/plugin``, which ``docs/add_a_format.md`` shows."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, SinkError, SourceError, SourceFormatError, open_source
from rlds2buf.formats import plugins, registry
from tests.cli.run import run
from tests.data import ROOT, absent
from tests.imports import loaded_by

Capture = pytest.CaptureFixture[str]

PACKAGE = ROOT / "tests" / "plugin"
PAGE = (ROOT / "docs" / "add_a_format.md").read_text(encoding="utf-8")
LOG = "TALLY\n\n0.5 1 1.0\n0.7 0 1.0\n0.9 terminated\n\n0.1 1 0.5\n0.4 truncated\n"
NAMED = r"the plug-in tally \(entry point tally_format:FORMAT of tally-format 1\.0\)"


def install(package: Path, target: Path) -> None:
    """A distribution into a folder of its own, by uv or pip."""
    tools = Path(sys.prefix).parent / "tools" / "bin" / "uv"
    uv = str(tools) if tools.is_file() else shutil.which("uv")
    if uv is not None:
        how = [uv, "pip", "install", "--python", sys.executable]
    elif importlib.util.find_spec("pip") is not None:
        how = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    else:
        absent("uv or pip")
    done = subprocess.run(
        [*how, "--quiet", "--no-deps", "--target", target, package], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PACKAGE, folder / "package")
    install(folder / "package", folder / "site")
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(site)
    yield site
    sys.modules.pop("tally_format", None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.tally"
    path.write_text(LOG)
    return path


def test_the_page_is_the_package() -> None:
    blocks = dict(re.findall(r"^```(toml|python)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))
    assert blocks["toml"] == (PACKAGE / "pyproject.toml").read_text(encoding="utf-8")
    assert blocks["python"] == (PACKAGE / "tally_format.py").read_text(encoding="utf-8")
    assert re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL) == [LOG]


@pytest.mark.usefixtures("installed")
def test_the_commands_of_the_page_run(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [{"observation": 0.5, "action": 1, "reward": 1.0}] * 3
    rlds2buf.convert([steps], "hopper.hdf5")
    (console,) = re.findall(r"^```console\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    for line in console.splitlines():
        name, *words = shlex.split(line, comments=True)
        assert name == "rlds2buf" and run(capsys, *words).code == 0, line
    assert log.read_text() == LOG and len(rlds2buf.load_buffer("hopper-buffer")) == 2


def test_its_reader_and_writer_are_short() -> None:
    tree = ast.parse((PACKAGE / "tally_format.py").read_text(encoding="utf-8"))
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            lines.add(node.lineno)
    assert 20 < len(lines) < 60


@pytest.mark.usefixtures("installed")
class TestInstalled:
    def test_is_found_by_content_and_read(self, log: Path, capsys: Capture) -> None:
        with open_source(log) as source:
            assert (source.format, source.name) == ("tally", str(log))
            one, two = source
        assert one.observation.tolist() == [0.5, 0.7, 0.9] and one.reward.tolist() == [1.0, 1.0, 0.0]
        assert (one.end, two.end, two.index) == ("terminated", "truncated", 1)
        found = run(capsys, "inspect", log, "--json").json
        assert (found["format"], found["episodes"], found["transitions"]) == ("tally", 2, 3)

    def test_is_converted_from_and_to(self, log: Path, tmp_path: Path, capsys: Capture) -> None:
        assert run(capsys, "convert", log, tmp_path / "buffer").code == 0
        assert len(rlds2buf.load_buffer(tmp_path / "buffer")) == 3
        result = run(capsys, "convert", tmp_path / "buffer", tmp_path / "back.tally", "--to", "tally", "-T", "digits=1")
        assert result.code == 0 and (tmp_path / "back.tally").read_text() == LOG
        assert run(capsys, "convert", log, tmp_path / "back.tally", "--to", "tally").code == 5
        assert run(capsys, "convert", log, tmp_path / "back.tally", "--to", "tally", "--overwrite").code == 0
        report = rlds2buf.convert(log, tmp_path / "again", to="tally", sink_options={"digits": 2})
        assert (report.episodes, report.items) == (2, 3) and "\n0.50 1 1.00\n" in (tmp_path / "again").read_text()

    def test_batches_follow_from_episodes(self, log: Path) -> None:
        with open_source(log) as source:
            (batch,) = source.read_batches()
        assert [episode.num_steps for episode in batch] == [3, 2]

    def test_its_options_are_checked_and_listed(self, log: Path, tmp_path: Path, capsys: Capture) -> None:
        assert next(iter(open_source(log, scale=2))).reward.tolist() == [2.0, 2.0, 0.0]
        with pytest.raises(TypeError, match="scale must be a number, got 'big'"):
            open_source(log, scale="big")
        with pytest.raises(TypeError, match="a tally takes no option 'colour'; its options: scale"):
            open_source(log, colour=1)
        with pytest.raises(ValueError, match="tally is written in one go: resume is not for it"):
            rlds2buf.convert(log, tmp_path / "out", to="tally", resume=True)
        told = run(capsys, "formats", "tally", "--json").json
        assert re.match(NAMED, told["plugin"])
        assert told["options"] == {
            "read": [{"name": "scale", "type": "float", "default": 1.0, "help": "what every reward is multiplied by"}],
            "write": [{"name": "digits", "type": "int", "default": 6, "help": "of each number behind the point"}],
        }
        assert any(one["name"] == "tally" for one in run(capsys, "formats", "--json").json["formats"])

    def test_what_a_built_in_format_claims_needs_the_name(self, log: Path) -> None:
        claimed = log.rename(log.with_name("log.csv"))
        with pytest.raises(SourceError, match="csv"):
            open_source(claimed)
        assert open_source(claimed, format="tally").num_episodes is None
        assert len(list(open_source(claimed, format="tally"))) == 2

    def test_help_and_completion_name_it_and_load_nothing(self, capsys: Capture) -> None:
        assert "|tally]" in "".join(run(capsys, "convert", "--help").out.split())
        assert "tally" in registry.source_names() and "tally" in registry.names()
        assert "tally_format" not in sys.modules

    def test_a_file_of_a_built_in_format_does_not_load_it(self, tmp_path: Path) -> None:
        rlds2buf.convert(
            [Episode(observation=np.arange(3), is_terminal=[False, False, True])], tmp_path / "a", to="rlds"
        )
        open_source(tmp_path / "a").close()
        assert "tally_format" not in sys.modules

    def test_an_error_in_its_reader_names_it(self, log: Path, tmp_path: Path, capsys: Capture) -> None:
        log.write_text(LOG.replace("0.5 truncated", "").replace("0.1 1 0.5", "0.1 up 0.5"))
        with open_source(log) as source, pytest.raises(SourceError, match=rf"log\.tally: {NAMED} failed: ValueError"):
            list(source)
        result = run(capsys, "convert", log, tmp_path / "out", "--json")
        assert result.code == 3 and re.search(NAMED, result.json["error"])
        with pytest.raises(SourceError, match=rf"{NAMED} failed: IsADirectoryError"):
            open_source(tmp_path, format="tally")

    def test_an_error_in_its_writer_names_it(self, log: Path, tmp_path: Path, capsys: Capture) -> None:
        words = [[{"observation": "a", "action": 0, "reward": 1.0}] * 2]
        with pytest.raises(SinkError, match=rf"out\.tally: {NAMED} failed: (ValueError|TypeError)"):
            rlds2buf.convert(words, tmp_path / "out.tally", to="tally")
        result = run(capsys, "convert", log, tmp_path / "no" / "out.tally", "--to", "tally")
        assert result.code == 4 and re.search(NAMED, result.err)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["log.tally"]

    def test_its_own_typed_errors_stay(self, log: Path, tmp_path: Path) -> None:
        with pytest.raises(rlds2buf.SnapshotExists, match="it is there already"):
            rlds2buf.convert(log, log, to="tally")


def broken(site: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution whose module is `code`."""
    info = site / "bad_format-2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-format\nVersion: 2\n")
    (info / "entry_points.txt").write_text("[rlds2buf.formats]\nbad = bad_format:FORMAT\n")
    (site / "bad_format.py").write_text(code)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "bad_format", raising=False)


BAD = r"the plug-in bad \(entry point bad_format:FORMAT of bad-format 2\)"
START = "from rlds2buf import *\nimport rlds2buf\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", rf"{BAD} failed: ZeroDivisionError"),
        ("", rf"{BAD} failed: AttributeError"),
        ("FORMAT = 3", rf"{BAD} should be the Format 'bad', and is int"),
        (f"{START}FORMAT = Format('good', 'x')", rf"{BAD} should be the Format 'bad', and is the Format 'good'"),
        (f"{START}FORMAT = Format('bad', 'x', source='no_such:A', sink='no_such:A')", rf"{BAD} failed: ModuleNotFound"),
        (f"{START}FORMAT = Format('bad', 'x', source='json:dumps', sink='json:dumps')", rf"{BAD}: json:dumps is no "),
    ],
)
def test_a_plug_in_that_can_not_be_loaded_is_named(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    broken(tmp_path / "site", code, monkeypatch)
    (tmp_path / "a").write_text("hello")
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path / "a", format="bad")
    with pytest.raises(SinkError, match=message):
        rlds2buf.convert([[{"observation": 1.0}]], tmp_path / "b", to="bad")
    assert run(capsys, "inspect", tmp_path / "a", "--format", "bad").code == 3
    assert run(capsys, "formats", "d4rl").code == 0 and run(capsys, "formats").code == 0
    with pytest.raises(SourceFormatError, match="not a recognised dataset: found a text file"):
        open_source(tmp_path / "a")


def test_a_plug_in_that_fails_while_looking_is_named_where_nothing_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(tmp_path / "site", f"{START}FORMAT = Format('bad', 'x', fits=lambda look: look.nonsense)", monkeypatch)
    (tmp_path / "a").write_text("hello")
    with pytest.raises(SourceFormatError, match=rf"not a recognised dataset.*; {BAD} failed: AttributeError"):
        open_source(tmp_path / "a")


def test_what_is_no_source_or_yields_no_episodes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""{START}
class A(rlds2buf.Source):
    format = "bad"
    def __init__(self, path): self.name = path.name
    spec = property(lambda self: rlds2buf.StepSpec())
class B(A):
    def read(self, start=0, stop=None): yield 3
FORMAT = Format("bad", "x", source="bad_format:A", fits=lambda look: look.head.startswith(b"hello"))
"""
    broken(tmp_path / "site", code, monkeypatch)
    (tmp_path / "a").write_text("hello")
    with pytest.raises(SourceError, match=rf"{BAD} failed: TypeError: A has neither `read` nor `read_batches`"):
        open_source(tmp_path / "a")
    (tmp_path / "site" / "bad_format.py").write_text(code.replace("bad_format:A", "bad_format:B") + "#")
    monkeypatch.delitem(sys.modules, "bad_format")
    importlib.invalidate_caches()
    with pytest.raises(SourceError, match=rf"a: {BAD} failed: TypeError: it gave a int, which is no Episode"):
        list(open_source(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"to must be one of buffer, .*bad, got 'bad'"):
        rlds2buf.convert([[{"observation": 1.0}]], tmp_path / "b", to="bad")


def test_a_built_in_format_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path / "site", "1 / 0", monkeypatch)
    (tmp_path / "site" / "bad_format-2.dist-info" / "entry_points.txt").write_text(
        "[rlds2buf.formats]\nd4rl = bad_format:FORMAT\n"
    )
    importlib.invalidate_caches()
    assert "d4rl" in plugins.names()
    assert registry.by_name("d4rl") in registry.BUILT_IN
    assert registry.target_names().count("d4rl") == registry.names().count("d4rl") == 1


def test_addresses_and_objects_are_offered_to_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""{START}
class A(rlds2buf.Source):
    format = "bad"
    def __init__(self, given): self.name = str(given)
    spec = property(lambda self: rlds2buf.StepSpec())
    def read(self, start=0, stop=None): yield Episode(observation=[1.0], source=self.name, index=0)
FORMAT = Format("bad", "x", source="bad_format:A", scheme="toy")
"""
    broken(tmp_path / "site", code, monkeypatch)
    with open_source("toy://one") as source:
        assert [episode.source for episode in source] == ["toy://one"]
    with pytest.raises(SourceError, match="gs:// is not read"):
        open_source("gs://bucket")
    module = tmp_path / "site" / "bad_format.py"
    module.write_text(code.replace('scheme="toy"', "fits_object=lambda value: isinstance(value, complex)"))
    monkeypatch.delitem(sys.modules, "bad_format")
    importlib.invalidate_caches()
    assert len(list(open_source(1j))) == 1 and len(list(open_source([1], format="bad"))) == 1
    with pytest.raises(TypeError, match="x is not read from a path"):
        open_source(tmp_path, format="bad")


def test_looking_for_plug_ins_is_not_part_of_importing() -> None:
    assert "importlib.metadata" not in loaded_by("import rlds2buf")
