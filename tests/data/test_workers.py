"""Work that several processes share."""

import pytest

from moejax.data.workers import in_processes
from moejax.interval import check_level


def sentence(level, tick):
    check_level(level)


def of_a_library(text, tick):
    float(text)


def said(work, task, workers):
    with pytest.raises(ValueError, match=r"level|convert") as refused:
        list(in_processes(work, [(task,)], workers, common=(), look=lambda done: None))
    return str(refused.value)


def test_a_worker_process_says_a_sentence_of_ours_as_it_is_and_a_librarys_as_its_own():
    assert said(sentence, 2.0, workers=2) == said(sentence, 2.0, workers=1)
    assert said(of_a_library, "many", workers=2).startswith("a library says: could not convert")
