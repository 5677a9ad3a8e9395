"""Small files: whole or as before, on a full disk as well, and clear about what is wrong with them."""

import errno
import json
import os

import msgspec
import pytest

from anychip.deploy import storage
from anychip_sdk.errors import IntegrityFailed, PreconditionFailed


class Note(msgspec.Struct, frozen=True):
    text: str
    schema_version: int = storage.SCHEMA_VERSION


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "note.json"


@pytest.fixture
def full_disk(monkeypatch):
    """No file can be made or become longer."""

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill():
        monkeypatch.setattr(storage, "_replace", refuse)
        monkeypatch.setattr(os, "posix_fallocate", refuse)

    return fill


def test_what_is_written_is_read(path):
    storage.write(path, Note("one"))
    storage.write(path, Note("two"))
    assert storage.read(path, Note) == Note("two")
    assert [one.name for one in path.parent.iterdir()] == ["note.json"]


def test_names_of_files_that_are_no_utf_8_are_kept(path):
    name = os.fsdecode(b"/caf\xe9")
    storage.write(path, Note(name))
    assert storage.read(path, Note) == Note(name)


def test_on_a_full_disk_a_file_is_overwritten_in_its_room(path, full_disk):
    storage.write(path, Note("a long text"))
    full_disk()
    storage.write(path, Note("short"))
    assert storage.read(path, Note) == Note("short")


def test_on_a_full_disk_what_has_no_room_is_refused_and_the_old_one_stays(path, full_disk):
    storage.write(path, Note("short"))
    full_disk()
    with pytest.raises(PreconditionFailed, match=r"note\.json can't be written: No space left on device"):
        storage.write(path, Note("a long text"))
    assert storage.read(path, Note) == Note("short")


def test_a_new_file_on_a_full_disk_is_refused(path, full_disk):
    full_disk()
    with pytest.raises(PreconditionFailed, match="No space left on device\n  hint: make room there"):
        storage.write(path, Note("one"))


def test_what_a_killed_command_left_is_written_over(path):
    storage.make_folder(path.parent)
    (path.parent / ".note.json.draft").write_text("half of it")
    storage.write(path, Note("one"))
    assert [one.name for one in path.parent.iterdir()] == ["note.json"]


def damage_folder(path):
    path.mkdir()


def damage_pipe(path):
    os.mkfifo(path)


def damage_link(path):
    path.symlink_to(path)


def damage_depth(path):
    path.write_text("[" * 100_000)


def damage_encoding(path):
    path.write_bytes(b'{"schema_version": 1, "text": "caf\xe9"}')


def damage_length(path):
    path.write_bytes(b" " * (storage.LARGEST_BYTES + 1))


def damage_type(path):
    path.write_text('{"schema_version": 1, "text": 5}')


def damage_version(path):
    path.write_text('{"text": "one"}')


@pytest.mark.parametrize(
    "damage",
    [
        damage_folder,
        damage_pipe,
        damage_link,
        damage_depth,
        damage_encoding,
        damage_length,
        damage_type,
        damage_version,
    ],
)
def test_a_damaged_file_is_named_whatever_is_in_its_place(path, damage):
    path.parent.mkdir()
    damage(path)
    with pytest.raises(IntegrityFailed, match=rf"^{path} (is damaged|can't be read): "):
        storage.read(path, Note)


def test_a_newer_schema_is_told_from_damage(path):
    path.parent.mkdir()
    path.write_text(json.dumps({"schema_version": 2, "what": "else"}))
    with pytest.raises(storage.TooNew, match="schema version 2, this anychip knows 1"):
        storage.read(path, Note)


def test_a_file_in_a_folders_place_is_named(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(PreconditionFailed, match=rf"^{tmp_path}/home is a file, expected a folder"):
        storage.write(tmp_path / "home" / "services" / "note.json", Note("one"))
