"""The embedded corpus: files on one side or the other, hashed, tokenised once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moejax.train import corpus


@given(st.text(min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_file_held_out_stays_held_out_when_the_share_grows(path, one, other):
    less, more = sorted((one, other))
    assert corpus.is_validation(path, less) <= corpus.is_validation(path, more)


def test_files_are_split_by_path_and_every_byte_is_kept(tmp_path):
    found = corpus.prepare("few", tmp_path, validation_share=0.3)
    assert found.train.files + found.validation.files == 40
    joined = np.concatenate([corpus.tokens(tmp_path, "train"), corpus.tokens(tmp_path, "validation")])
    assert (joined == corpus.END_OF_DOCUMENT).sum() == 40
    assert len(joined) - 40 == found.train.bytes + found.validation.bytes
    documents = [d for d in corpus.SOURCES["few"]() if corpus.is_validation(d.path, 0.3)]
    expected = b"".join(d.text for d in documents)
    held_out = corpus.tokens(tmp_path, "validation")
    assert bytes(held_out[held_out < 256].astype(np.uint8)) == expected


def test_the_unigram_entropy_is_that_of_the_frequencies(tmp_path):
    found = corpus.prepare("few", tmp_path, validation_share=0.3)
    joined = np.concatenate([corpus.tokens(tmp_path, "train"), corpus.tokens(tmp_path, "validation")])
    costs = [-math.log(np.mean(joined == token)) for token in joined]
    assert found.unigram_entropy == pytest.approx(np.mean(costs))


def test_a_corpus_is_tokenised_once_and_anew_for_other_choices(tmp_path):
    first = corpus.prepare("few", tmp_path, validation_share=0.3)
    before = (tmp_path / "train.npy").stat().st_mtime_ns
    assert corpus.prepare("few", tmp_path, validation_share=0.3) == first == corpus.load(tmp_path)
    assert (tmp_path / "train.npy").stat().st_mtime_ns == before
    assert corpus.prepare("few", tmp_path, validation_share=0.6) != first


def test_a_preparation_that_died_between_two_files_is_done_again(tmp_path, monkeypatch):
    first = corpus.prepare("few", tmp_path, validation_share=0.3)
    whole = corpus.tokens(tmp_path, "train").copy()

    def die(path, value):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(corpus, "write_json", die)
        with pytest.raises(KeyboardInterrupt):
            corpus.prepare("few", tmp_path, validation_share=0.6)
    assert corpus.prepare("few", tmp_path, validation_share=0.3) == first
    np.testing.assert_array_equal(corpus.tokens(tmp_path, "train"), whole)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    documents = [*corpus.SOURCES["few"](), corpus.Document("secret.txt", None)]
    monkeypatch.setitem(corpus.SOURCES, "few", lambda: iter(documents))
    assert corpus.prepare("few", tmp_path, validation_share=0.3).unreadable == ("secret.txt",)


def test_the_standard_library_is_there():
    paths = {document.path for document in corpus.python_stdlib()}
    assert {"ast.py", "json/decoder.py"} <= paths
    assert not any("site-packages" in path for path in paths)


def test_an_unknown_corpus_is_refused_and_the_known_ones_named(tmp_path):
    with pytest.raises(ValueError, match="known are python_stdlib"):
        corpus.prepare("pile", tmp_path, validation_share=0.3)
