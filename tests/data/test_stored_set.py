"""A prepared set in a store gives the batches that it gives from a disk."""

import uuid

import fsspec
import numpy as np
import pytest

from moejax.data.config import DataConfig
from moejax.data.corpus import STORE_THREADS, open_corpus
from moejax.data.prepare import prepare
from moejax.errors import UserError


@pytest.fixture
def places(tmp_path):
    """A folder of a prepared set, and its copy in this process's memory."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(30):
        (text / f"{number}.txt").write_text(f"document {number} " * 40)
    prepare(str(text), tmp_path / "set", validation_share=0.2)
    url = f"memory://{uuid.uuid4().hex}/set"
    storage, root = fsspec.core.url_to_fs(url)
    for path in (path for path in (tmp_path / "set").rglob("*") if path.is_file()):
        storage.pipe_file(f"{root}/{path.relative_to(tmp_path / 'set').as_posix()}", path.read_bytes())
    return tmp_path / "set", url


def first_batches(source, folder, packing, **options):
    corpus = open_corpus(DataConfig(source=str(source), packing=packing, sequence_length=32), folder)
    batches = corpus.batches(batch=4, seed=1, **options)
    return corpus, [next(batches) for _ in range(5)]


@pytest.mark.parametrize("packing", ["windows", "documents"])
def test_batches_from_a_store_are_those_from_a_disk_whatever_the_threads(places, tmp_path, packing):
    folder, url = places
    here, expected = first_batches(folder, tmp_path / "here", packing)
    there, found = first_batches(url, tmp_path / "there", packing)
    assert (here.reader_threads, there.reader_threads) == (1, STORE_THREADS)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_equal(one, other)
    for one, other in zip(expected, first_batches(url, tmp_path / "there", packing, threads=1)[1], strict=True):
        np.testing.assert_equal(one, other)
    assert here.summary().sha256 == there.summary().sha256
    assert not list((tmp_path / "there").rglob("*.tokens"))
    for prepared in there.sets:
        prepared.check_content(tmp_path / "there")


def test_what_is_missing_or_cut_in_a_store_is_named(places, tmp_path):
    _, url = places
    storage, root = fsspec.core.url_to_fs(url)
    tokens = next(path for path in storage.find(root) if path.endswith(".train.tokens"))
    storage.pipe_file(tokens, storage.cat_file(tokens)[:-2])
    with pytest.raises(UserError, match=r"train.tokens in memory.* bytes instead of"):
        first_batches(url, tmp_path / "there", "windows")
    with pytest.raises(UserError, match="holds no prepared set"):
        first_batches(f"{url}-none", tmp_path / "none", "windows")


def test_an_end_of_documents_that_was_damaged_here_is_found(places, tmp_path):
    _, url = places
    corpus, _ = first_batches(url, tmp_path / "there", "documents")
    ends = next((tmp_path / "there").rglob("*.train.ends"))
    ends.write_bytes(bytes(len(ends.read_bytes())))
    with pytest.raises(UserError, match="have changed since they were written"):
        corpus.sets[0].check_content(tmp_path / "there")
