"""Names in HDF5 files that are no text."""

import h5py
import pytest

import rlds2buf
from rlds2buf.io.look import Look


@pytest.fixture
def odd_names(tmp_path):
    path = tmp_path / "odd.bin"
    with h5py.File(path, "w") as file:
        file.create_group(b"episode_\xff").create_dataset(b"rewards\xfe", data=[1.0])
        file.create_dataset("episode_0", data=[1.0])
    return path


def test_names_that_are_not_utf8_are_shown_escaped(odd_names):
    look = Look(odd_names)
    assert sorted(look.hdf5) == ["episode_0", "episode_\\xff"]
    assert look.hdf5["episode_\\xff"] == []
    assert "episode_\\xff" in look.describe()


def test_a_file_with_such_names_is_refused_in_words(odd_names):
    with pytest.raises(rlds2buf.SourceFormatError, match=r"episode_\\xff"):
        rlds2buf.open_source(odd_names)
