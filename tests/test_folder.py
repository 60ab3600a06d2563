"""Output folders have one owner, one writer at a time, and whole files."""

import pytest

from moejax.folder import claim, differences, only_writer, whole_folder, write_json


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
    with whole_folder(tmp_path / "out") as partial:
        (partial / "a").write_text("1")
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a"]


def test_a_whole_folder_that_failed_leaves_nothing_and_what_was_killed_is_swept(tmp_path):
    (tmp_path / ".out.partial" / "old").mkdir(parents=True)

    def stopped():
        with whole_folder(tmp_path / "out") as partial:
            assert [path.name for path in partial.iterdir()] == [".lock"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not list(tmp_path.iterdir())


def test_a_whole_folder_is_neither_written_over_nor_filled_by_two(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="is there already"), whole_folder(tmp_path / "there"):
        pass
    with (
        whole_folder(tmp_path / "out"),
        pytest.raises(ValueError, match="Another process is writing"),
        whole_folder(tmp_path / "out"),
    ):
        pass
    assert (tmp_path / "out").is_dir()
