"""``moejax train --out`` in stores with real servers: killed and resumed, on this machine and on others; refused."""

import os
import socket
import subprocess

import pytest
from command import command, environment, logged, run, start, write_config
from killing import kill_and_compare, status
from object_store import serve

from moejax.data.prepare import prepare
from moejax.storage import open_storage

pytestmark = pytest.mark.stores


@pytest.fixture(scope="module")
def store(request):
    with serve(getattr(request, "param", "s3")) as url:
        yield url


both_stores = pytest.mark.parametrize("store", ["s3", "gs"], indirect=True)


@pytest.mark.parametrize(
    ("store", "kills", "processes"), [("s3", 10, 1), ("s3", 4, 2), ("gs", 6, 1)], indirect=["store"]
)
def test_a_training_in_a_store_that_is_killed_ends_the_same(tmp_path, store, kills, processes):
    place = f"{store}/{processes}"
    met, _ = kill_and_compare(tmp_path, kills=kills, processes=processes, seed=2, store=place)
    assert sum(met.values()) == kills


@both_stores
def test_a_second_writer_is_refused_and_the_first_one_ends_with_everything_saved(tmp_path, store):
    config, url = write_config(tmp_path), f"{store}/two"
    long = [f"--config={config}", "--config.recipe.budgets_tokens=50000000"]
    first = start(tmp_path / "cache", *long, "--out", url, "--local", tmp_path / "first")
    while not (tmp_path / "first" / "training.json").exists():
        assert first.poll() is None, first.communicate()[1]
    second = run(tmp_path / "cache", f"--config={config}", "--out", url, "--local", tmp_path / "second")
    assert second.returncode == 2
    assert f"Another process ({first.pid} on " in second.stderr
    assert status(url)["state"] == "running"
    first.terminate()
    said = first.communicate()[1]
    assert first.returncode == 75, said
    assert status(url)["state"] == "interrupted"


@both_stores
def test_tokens_are_read_from_a_store_as_from_a_disk(tmp_path, store):
    config, here = write_config(tmp_path), tmp_path / "set"
    prepare(str(tmp_path / "text"), here, validation_share=0.2)
    there = store.replace("run", "set")
    open_storage(there).put(f"{here}/", "", recursive=True)
    for name, source in (("disk", here), ("store", there)):
        words = [f"--config={config}", f"--config.recipe.data.source={source}", "--out", tmp_path / name]
        ended = run(tmp_path / "cache", *words)
        assert ended.returncode == 0, ended.stderr
    assert logged(tmp_path / "disk") == logged(tmp_path / "store")


def refused(config, url, folder, **variables):
    """What is said, and nothing was compiled before it."""
    ended = subprocess.run(
        command(f"--config={config}", "--out", url, "--local", folder / "local"),
        env=environment(folder / "cache") | variables,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert not (folder / "cache").exists()
    return ended.stderr


@both_stores
def test_a_bucket_that_is_not_there_is_named(tmp_path, store):
    url = store.replace("bucket", "nothing")
    said = refused(write_config(tmp_path), url, tmp_path)
    assert f"{url} cannot be written to" in said


def test_missing_credentials_are_said(tmp_path, store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    said = refused(
        write_config(tmp_path), f"{store}/none", tmp_path, HOME=str(tmp_path), AWS_EC2_METADATA_DISABLED="true"
    )
    assert "credentials" in said


def test_a_store_that_does_not_answer_is_waited_for_half_a_minute(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": endpoint}
        said = refused(write_config(tmp_path), "s3://bucket/run", tmp_path, **keys, AWS_DEFAULT_REGION="us-east-1")
    assert "no answer within 30 s" in said


def test_a_package_that_is_missing_is_named(tmp_path, store):
    hidden = tmp_path / "hidden" / "s3fs.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ImportError('none')")
    said = refused(write_config(tmp_path), f"{store}/none", tmp_path, PYTHONPATH=os.pathsep.join([str(hidden.parent)]))
    assert "pip install 'moejax[s3]'" in said
