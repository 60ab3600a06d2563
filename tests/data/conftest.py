"""A tokenizer trained in the session, and a folder of text."""

import pytest
from written import TEXTS, json_lines

from moejax.data.train_tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """``TEXTS`` as one file of JSON lines."""
    folder = tmp_path_factory.mktemp("text")
    json_lines(folder)
    assert TEXTS
    return folder


@pytest.fixture(scope="session")
def bpe(text_folder, tmp_path_factory):
    """Path of a byte-level BPE of 300 tokens."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(str(text_folder), path, vocab_size=300)
    return path
