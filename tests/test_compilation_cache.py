"""Programs that JAX keeps in a folder: found again, and never another's or a damaged one."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from moejax.compilation_cache import keep_programs, processor_mark, remove_damaged

MATRIX = np.full((3, 3), 0.3, np.float32)


@pytest.fixture(autouse=True)
def nothing_chosen():
    """No folder is asked for, and every program is kept, however soon it is compiled."""
    chosen = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", chosen)
    # JAX would go on with the folder of a test.
    compilation_cache.reset_cache()


@contextlib.contextmanager
def counting():
    """How many programs were found, and how many compiled and written."""
    counts = {"cache_hits": 0, "cache_misses": 0}

    def listener(event, **about):
        name = event.rpartition("/")[2]
        counts[name] = counts.get(name, 0) + 1

    jax.monitoring.register_event_listener(listener)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_listener(listener)


def start(programs, **options):
    """What a process does at its start, and then one program; its result, and what was found and compiled."""
    remove_damaged(programs)
    with keep_programs(programs, **options):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        with counting() as counts:
            result = jax.jit(lambda x: jnp.sin(x) @ x).lower(MATRIX).compile()(MATRIX)
    return result, counts["cache_hits"] > 0, counts["cache_misses"] > 0


def kept(programs):
    """The one program that was kept of the function above."""
    (path,) = programs.glob("*/jit__lambda*")
    return path


def test_a_second_start_finds_the_program_of_the_first(tmp_path):
    first, found, compiled = start(tmp_path)
    assert (found, compiled) == (False, True)
    second, found, compiled = start(tmp_path)
    assert (found, compiled) == (True, False)
    assert first.tobytes() == second.tobytes()


def test_a_program_of_which_only_a_part_was_written_is_compiled_anew(tmp_path):
    first, _, _ = start(tmp_path)
    path = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    second, found, compiled = start(tmp_path)
    assert (found, compiled) == (False, True)
    assert first.tobytes() == second.tobytes()
    assert start(tmp_path)[1:] == (True, False)


def test_other_threads_have_other_programs(tmp_path):
    start(tmp_path, beside=["4 threads"])
    assert start(tmp_path, beside=["8 threads"])[1:] == (False, True)
    assert processor_mark() != processor_mark(["4 threads"]) != processor_mark(["8 threads"])


def test_a_folder_of_the_users_loses_nothing(tmp_path):
    others = [tmp_path / "photos" / "a-cache", tmp_path / processor_mark() / "notes.txt", tmp_path / "letter-cache"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
    start(tmp_path)
    assert start(tmp_path)[1:] == (True, False)
    assert all(path.read_text() == "precious" for path in others)


def test_where_nothing_can_be_kept_programs_are_compiled_all_the_same(tmp_path):
    (tmp_path / "file").touch()
    assert start(tmp_path / "file")[1:] == (False, False)


def test_what_the_user_has_chosen_stays(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "chosen"))
    start(tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "chosen")
