"""Output folders have one owner, one writer at a time, and whole files."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moejax.cli.out_folder import out_file, out_folder
from moejax.folder import (
    WRITTEN,
    atomic_folder,
    atomic_write,
    check_as_written,
    check_replaceable,
    differences,
    has_writer,
    one_set,
    only_writer,
    outputs_of,
    reading,
    write_json,
    written_in,
)
from moejax.stored import claim


def test_a_folder_is_claimed_once_and_continued_by_the_same(tmp_path):
    claim(tmp_path / "a", "study.json", {"x": [1, 2]})
    claim(tmp_path / "a", "study.json", {"x": (1, 2)})


def test_a_folder_of_another_run_is_refused_and_the_difference_named(tmp_path):
    claim(tmp_path, "study.json", {"recipe": {"seed": 0}})
    with pytest.raises(ValueError, match=r"belongs to another run: recipe\.seed was 0, is 1"):
        claim(tmp_path, "study.json", {"recipe": {"seed": 1}})


def test_a_folder_with_other_files_is_refused_and_nothing_is_written(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="not empty"):
        claim(tmp_path, "study.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        claim(tmp_path / "file" / "below", "study.json", {})


def test_a_second_writer_is_refused(tmp_path):
    with (
        only_writer(tmp_path),
        pytest.raises(ValueError, match="Another process is writing"),
        only_writer(tmp_path, patience_seconds=0.1),
    ):
        pass


def test_differences_name_added_removed_and_changed_settings():
    found = differences({"a": 1, "b": {"c": 2}}, {"b": {"c": 3}, "d": 4})
    assert found == ["a was 1, is None", "b.c was 2, is 3", "d was None, is 4"]


def test_json_is_replaced_whole(tmp_path):
    write_json(tmp_path / "x.json", [1])
    write_json(tmp_path / "x.json", [2])
    assert (tmp_path / "x.json").read_text().strip().startswith("[")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_whole_folder_appears_when_it_is_filled(tmp_path):
    with atomic_folder(tmp_path / "out") as partial:
        (partial / "a").write_text("1")
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a"]


def test_a_whole_folder_that_failed_leaves_nothing_and_what_was_killed_is_swept(tmp_path):
    (tmp_path / ".out.partial" / "old").mkdir(parents=True)
    (tmp_path / ".out.partial" / ".lock").touch()

    def stopped():
        with atomic_folder(tmp_path / "out") as partial:
            assert [path.name for path in partial.iterdir()] == [".lock"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not list(tmp_path.iterdir())


def test_a_hidden_folder_of_the_users_is_not_swept(tmp_path):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"\.out\.partial already exists"), atomic_folder(tmp_path / "out"):
        pass
    assert (tmp_path / ".out.partial" / "thesis.tex").exists()


def test_a_pipe_in_the_locks_place_is_refused(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(ValueError, match="must be a regular file"), only_writer(tmp_path):
        pass
    with pytest.raises(ValueError, match="must be a regular file"):
        has_writer(tmp_path)


@pytest.mark.parametrize("how", ["the lock is removed", "the lock is another's", "the folder is another", "it is gone"])
def test_who_holds_a_lock_sees_that_the_folder_is_no_longer_the_one_that_was_locked(tmp_path, how):
    folder, other = tmp_path / "out", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    with only_writer(folder) as lock:
        lock.check()
        if how == "the lock is removed":
            (folder / ".lock").unlink()
        elif how == "the lock is another's":
            (folder / ".lock").unlink()
            with only_writer(folder):
                pass
        elif how == "the folder is another":
            with only_writer(other):
                pass
            folder.rename(tmp_path / "moved")
            other.rename(folder)
        else:
            folder.rename(tmp_path / "moved")
        with pytest.raises(ValueError, match="was moved or replaced, or its"):
            lock.check()


LONG = json.dumps(["a" * 300, "x"])


@pytest.mark.parametrize("line", ['[3, "x"]', '["a", 3]', '"ab"', '{"a": 1, "b": 2}', LONG, r'["a\u0000", "x"]'])
def test_a_note_of_something_else_names_no_file(line, tmp_path):
    (tmp_path / "a").touch()
    (tmp_path / WRITTEN).write_text(f"{line}\n")
    assert written_in(tmp_path) == []


def test_what_a_link_leads_to_is_compared_too(tmp_path):
    (tmp_path / "there").mkdir()
    with atomic_write(tmp_path / "there" / "t", noted=True) as partial:
        partial.write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "t")
    (tmp_path / "folder").symlink_to(tmp_path / "there")
    check_as_written(tmp_path / "link")
    (tmp_path / "there" / "t").write_text("2")
    for path in ("link", "folder/t", "there/t"):
        with pytest.raises(ValueError, match="differs from the file that moejax wrote"):
            check_as_written(tmp_path / path)


def test_a_whole_folder_is_neither_written_over_nor_filled_by_two(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="already exists"), atomic_folder(tmp_path / "there"):
        pass
    with (
        atomic_folder(tmp_path / "out"),
        pytest.raises(ValueError, match="Another process is writing"),
        atomic_folder(tmp_path / "out"),
    ):
        pass
    assert (tmp_path / "out").is_dir()


def test_a_file_that_moejax_did_not_write_is_not_replaced(tmp_path):
    (tmp_path / "fit.json").write_text("mine")
    with pytest.raises(ValueError, match="was not written by moejax; choose another path"), out_folder(tmp_path):
        write_json(tmp_path / "fit.json", {})
    assert (tmp_path / "fit.json").read_text() == "mine"


def test_what_moejax_wrote_is_replaced_until_somebody_changes_it(tmp_path):
    for value in (1, 2, 1):
        with out_folder(tmp_path):
            write_json(tmp_path / "a", value)
    assert written_in(tmp_path) == ["a"]
    (tmp_path / "a").write_text("edited")
    with pytest.raises(ValueError, match="was changed after moejax wrote it"), out_folder(tmp_path):
        write_json(tmp_path / "a", 3)
    assert (tmp_path / "a").read_text() == "edited"


def test_a_link_to_a_file_elsewhere_is_not_replaced(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="was not written by moejax"), out_file(tmp_path / "out" / "a"):
        write_json(tmp_path / "out" / "a", 1)
    assert (tmp_path / "out" / "a").is_symlink()


def test_what_a_command_reads_is_not_replaced_though_moejax_wrote_it(tmp_path):
    with out_folder(tmp_path):
        write_json(tmp_path / "runs.json", 1)
    with (
        pytest.raises(ValueError, match="is read by this command"),
        reading([tmp_path / "runs.json"]),
        out_folder(tmp_path),
    ):
        write_json(tmp_path / "runs.json", 2)


def test_a_note_is_on_the_disk_before_the_file_it_is_about_is_in_its_place(tmp_path, monkeypatch):
    synced, plain = [], os.fsync

    def sync(number):
        synced.append((os.fstat(number).st_ino, (tmp_path / "law.json").exists()))
        plain(number)

    monkeypatch.setattr("moejax.folder.os.fsync", sync)
    with outputs_of(tmp_path):
        write_json(tmp_path / "law.json", {})
    assert ((tmp_path / WRITTEN).stat().st_ino, False) in synced


@pytest.mark.parametrize("line", ['["b", "012', "[" * 100_000 + "\n"], ids=["torn", "nested too deeply"])
def test_a_line_of_a_note_that_cannot_be_read_names_nothing_and_leaves_the_others_readable(tmp_path, line):
    with out_folder(tmp_path):
        write_json(tmp_path / "a", 1)
        note = tmp_path / WRITTEN
        note.write_text(note.read_text() + line)
        write_json(tmp_path / "c", 1)
    assert written_in(tmp_path) == ["a", "c"]


def test_a_name_of_255_bytes_can_be_written(tmp_path):
    with atomic_write(tmp_path / ("é" * 125 + ".json")) as partial:
        partial.write_text("1")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("empty", "is a link"), ("dangling", "is a link"), (".", "is the current folder")],
)
def test_what_a_new_folder_could_not_take_the_place_of_is_refused_before_the_work(
    tmp_path, monkeypatch, name, sentence
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    if name != ".":
        (tmp_path / "empty there").mkdir()
        Path(name).symlink_to(tmp_path / f"{name} there")
    with pytest.raises(ValueError, match=sentence), atomic_folder(Path(name)):
        pytest.fail("the work began")
    assert not list(tmp_path.glob("**/*.partial"))


STRANGE = {
    "a link to a file elsewhere": lambda path: path.symlink_to(path.parent.parent / "theirs"),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("is_there", [True, False])
def test_what_stands_in_the_place_of_the_notes_is_neither_followed_nor_waited_for(tmp_path, make, is_there):
    (tmp_path / "theirs").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    make(out / WRITTEN)
    if is_there:
        (out / "a").write_text("mine")
    with (
        pytest.raises(ValueError, match=f"{WRITTEN} must be a regular file.*choose another --out, or remove it"),
        out_folder(out),
    ):
        write_json(out / "a", 1)
    assert (tmp_path / "theirs").read_text() == "mine"
    assert (out / "a").exists() == is_there


def test_a_link_to_itself_is_no_file_that_is_read_or_was_written(tmp_path):
    (tmp_path / "a").symlink_to("a")
    with reading([tmp_path / "b"]):
        check_replaceable(tmp_path / "a")
    check_as_written(tmp_path / "a")


def test_threads_guard_each_their_own_folder(tmp_path):
    def work(name):
        with out_folder(tmp_path / name):
            both.wait()
            write_json(tmp_path / name / "a", name)
            both.wait()
            return written_in(tmp_path / name)

    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, ["x", "y"])) == [["a"], ["a"]]


def test_files_of_one_set_appear_together_or_not_at_all(tmp_path):
    def write(number, fails=False):
        with one_set():
            for name in ("a", "b"):
                with atomic_write(tmp_path / name) as partial:
                    partial.write_text(str(number))
                assert not number or (tmp_path / "a").read_text() == "0"
            if fails:
                raise OSError("full")

    def found():
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    write(0)
    assert found() == {"a": "0", "b": "0"}
    with pytest.raises(OSError, match="full"):
        write(1, fails=True)
    assert found() == {"a": "0", "b": "0"}
    write(2)
    assert found() == {"a": "2", "b": "2"}
