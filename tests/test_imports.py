"""Who may import whom, what an import costs, and that every public name is there."""

from __future__ import annotations

import sys

import pytest

import rlds2buf
from tests.imports import ALL, FILES, OWN, PACKAGE, Import, loaded_by, run_python

LAYERS = {
    "errors": "",
    "core": "errors",
    "kernels": "core.row_flags",
    "files": "core errors",
    "codecs": "kernels files core errors",
    "numbers": "kernels files core errors",
    "views": "core errors kernels",
    "returns": "core errors kernels",
    "transform": "numbers core errors kernels",
    "check": "core errors kernels",
    "io": "codecs files core errors",
    "buffers": "numbers views returns kernels codecs.images files core errors",
    "formats": "io codecs numbers files core errors",
    "formats.reverb": "views kernels",
    "formats.buffer": "buffers",
    "formats.d3rlpy": "formats.d4rl",
    "pipeline": "formats io check transform returns numbers codecs files core errors",
    "summaries": "numbers pipeline check views io transform formats.lerobot files core errors",
    "reverb": "pipeline formats io core errors",
    "rlds_to_reverb": "pipeline formats.reverb io core errors",
    "adapters": "buffers pipeline summaries numbers views formats.lerobot core errors",
    "cli": "reverb summaries pipeline numbers buffers check formats core errors",
    "__main__": "cli",
    "version": "",
    "__init__": "",
}
"""What each room may import from: a whole room, or one part of it; every room also from itself (a format's folder
from its own and from ``formats`` itself) and from ``version``; nothing imports the top."""

INSIDE_BUFFERS = """loading mixed
learner
multi_agent
factories
buffer
epochs first_add vector_steps
copies vectorized
disk
storage_units engine
read contents
add
select
rows
finishing
normalizer augment other_names keys"""
"""Files and folders of ``buffers``: each imports only those further down."""

HEAVY = {
    "numba": "kernels/",
    "llvmlite": "kernels/",
    "h5py": "codecs/hdf5/",
    "array_record": "codecs/tfrecord/array_record.py",
    "pyarrow": "codecs/arrow/",
    "PIL": "codecs/images/",
    "av": "codecs/video/",
    "simplejpeg": "codecs/images/turbo.py",
    "tensorflow": "formats/rlds/tf_data_source.py rlds_to_reverb/ core/frameworks.py",
    "tensorflow_datasets": "",
    "reverb": "rlds_to_reverb/",
    "tf_agents": "rlds_to_reverb/",
    "rlds": "",
    "grpc": "formats/reverb/protocol/",
    "google": "formats/reverb/protocol/",
    "cramjam": "formats/reverb/protocol/",
    "torch": "core/frameworks.py adapters/",
    "jax": "core/frameworks.py adapters/",
    "rich": "pipeline/progress.py",
    "zarr": "formats/zarr/",
    "numcodecs": "formats/zarr/",
    "imagecodecs": "formats/zarr/",
    "msgpack": "codecs/message_pack.py",
    "gymnasium": "",
    "minari": "",
    "ray": "",
    **dict.fromkeys(
        ("d3rlpy", "flashbax", "grain", "imitation", "stable_baselines3", "tensordict", "tianshou", "torchrl"),
        "adapters/",
    ),
}
"""Packages that are slow to load or may be missing, and the files that adapt them."""
AT_THE_TOP = {"numba", "llvmlite"}
"""Of these, what a file that adapts it may import at its top: such files are themselves imported when used."""


def room_of(module: str) -> str:
    """``rlds2buf.core.nest`` is in ``core``, ``rlds2buf.formats.d4rl.sink`` in ``formats.d4rl``."""
    names = module.split(".")[1:]
    if names[:1] == ["formats"] and len(names) > 1 and (PACKAGE / "formats" / names[1]).is_dir():
        return ".".join(names[:2])
    return names[0] if names else "__init__"


def follows_an_arrow(found: Import) -> bool:
    """Whether the table has an arrow from the room of the importer to what it imports."""
    importer, imported = room_of(found.importer), room_of(found.imported)
    if imported in (importer, "version"):
        return True
    rooms = {importer, importer.partition(".")[0]}
    allowed = {name for room in rooms for name in LAYERS.get(room, "").split()}
    if imported.startswith("formats.") and importer == "formats":  # the registry asks each format
        return True
    whole = found.imported.removeprefix("rlds2buf.")
    return any(f"{whole}.".startswith(f"{name}.") for name in allowed)


def test_the_rooms_have_no_cycle() -> None:
    rooms = {room: names.split() for room, names in LAYERS.items() if "." not in room}
    allowed = {room: {name.partition(".")[0] for name in names} for room, names in rooms.items()}
    while allowed:
        free = {room for room, names in allowed.items() if not names}
        assert free, f"a cycle among {sorted(allowed)}"
        allowed = {room: names - free for room, names in allowed.items() if room not in free}


def test_every_import_follows_an_arrow() -> None:
    assert len(OWN) > 100
    wrong = [str(found) for found in OWN if not follows_an_arrow(found)]
    assert not wrong, "\n".join(wrong)


def test_inside_buffers_arrows_go_downward() -> None:
    rank = {name: number for number, names in enumerate(INSIDE_BUFFERS.split("\n")) for name in names.split()}
    parts = {path.stem for path in (PACKAGE / "buffers").iterdir() if path.stem not in ("__init__", "__pycache__")}
    assert parts == set(rank)
    wrong = []
    for found in OWN:
        names = [module.split(".") for module in (found.importer, found.imported)]
        if all(len(name) > 2 and name[1] == "buffers" for name in names):
            above, below = (rank[name[2]] for name in names)
            if names[0][2] != names[1][2] and above >= below:
                wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_heavy_packages_are_imported_when_used_by_the_file_that_adapts_them() -> None:
    wrong = []
    for found in ALL:
        package = found.imported.split(".")[0]
        if package not in HEAVY:
            continue
        file = found.importer.removeprefix("rlds2buf.").replace(".", "/") + ".py"
        if not any(file == home or (home.endswith("/") and file.startswith(home)) for home in HEAVY[package].split()):
            wrong.append(f"{found}, which is adapted elsewhere")
        elif found.at_load and package not in AT_THE_TOP and not file.startswith("adapters/"):
            wrong.append(f"{found} when it is loaded, not when it is used")
    assert not wrong, "\n".join(wrong)


def test_no_unknown_package_is_imported() -> None:
    known = {*HEAVY, *sys.stdlib_module_names, "rlds2buf", "numpy", "crc32c", "click"}
    unknown = [str(found) for found in ALL if found.imported.split(".")[0] not in known]
    assert not unknown, "\n".join(unknown)


def test_nothing_is_ever_unpickled() -> None:
    banned = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    assert not [str(found) for found in ALL if found.imported.split(".")[0] in banned]
    allowing = [path for path in FILES if "allow_pickle=True" in path.read_text(encoding="utf-8").replace(" ", "")]
    assert not allowing


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")]


def test_every_public_name_is_there() -> None:
    assert len(set(rlds2buf.__all__)) == len(rlds2buf.__all__)
    missing = [name for name in rlds2buf.__all__ if getattr(rlds2buf, name, None) is None]
    assert not missing
    assert set(dir(rlds2buf)) >= set(rlds2buf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = rlds2buf.nonsense


def test_every_error_is_public() -> None:
    assert set(rlds2buf.errors.__all__) <= set(rlds2buf.__all__)


@pytest.mark.parametrize(
    "first", ["", "import rlds2buf.pipeline.conversion", "from rlds2buf.pipeline.conversion import ConvertReport"]
)
def test_a_function_wins_over_its_module_whatever_was_imported_first(first: str) -> None:
    code = f"""
{first}
import rlds2buf
try:
    rlds2buf.convert("no-such-path", [])
except rlds2buf.SourceNotFound:
    print(rlds2buf.errors.__name__, rlds2buf.convert.__module__)
"""
    assert _output("-c", code) == "rlds2buf.errors rlds2buf.pipeline.conversion\n"


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = loaded_by("import rlds2buf")
    assert {name for name in loaded if not name.startswith(("typing", "_typing", "collections"))} == {
        "rlds2buf",
        "rlds2buf.version",
    }


def test_help_loads_nothing_heavy() -> None:
    loaded = loaded_by("from rlds2buf.cli.main import main; main(['--help'])")
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - sys.stdlib_module_names == {"rlds2buf", "click"}
    assert not packages & {"asyncio", "concurrent", "http", "multiprocessing", "sqlite3", "unittest", "xml"}
    own = {name for name in loaded if name.startswith("rlds2buf.")}
    rooms = {room_of(name).partition(".")[0] for name in own}
    assert rooms <= {"cli", "core", "errors", "formats", "io", "pipeline", "version"}
    assert {name for name in own if name.count(".") == 3 and ".formats." in name} <= {
        f"rlds2buf.formats.{path.parent.name}.format" for path in PACKAGE.glob("formats/*/format.py")
    }
    # Of what commands are made of, what each format says of itself and a few words: no reader, writer or buffer.
    assert len([name for name in own if room_of(name) != "cli" and ".formats." not in name]) < 15, own


def _output(*arguments: str) -> str:
    return run_python(*arguments).stdout
