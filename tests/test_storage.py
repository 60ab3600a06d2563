"""Stores that cannot be used are reported in one sentence."""

import os
import re
import time

import pytest

from moejax.errors import UserError
from moejax.storage import open_storage, within
from moejax.wording import install_command


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("nothing://bucket/run", "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a folder"),
        ("reference://x", "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a folder"),
        ("S3://bucket/run", "write s3://"),
    ],
)
def test_a_store_that_cannot_be_spoken_to_is_said_in_a_sentence(url, remedy):
    with pytest.raises(UserError, match=f"^{url} cannot be reached from here: .*; {remedy}.$") as refused:
        open_storage(url)
    assert "Error" not in str(refused.value)


@pytest.mark.parametrize(("url", "extra"), [("s3://bucket/run", "s3"), ("gs://bucket/run", "gs")])
def test_a_package_that_is_missing_is_named_by_what_installs_it(url, extra, monkeypatch):
    def missing(protocol):
        raise ImportError(f"Install it to access {protocol}")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    with pytest.raises(UserError, match=re.escape(install_command(extra))):
        open_storage(url)


def test_a_store_that_does_not_answer_is_waited_for_so_long_and_no_longer():
    with pytest.raises(TimeoutError, match="no answer"):
        within(0.01, lambda: time.sleep(1))
    assert within(60, os.getpid) == os.getpid()
