"""Work that several processes share."""

import pytest

from moejax.data.workers import in_processes
from moejax.errors import UserError
from moejax.interval import check_level


def sentence(level, tick):
    check_level(level)


def of_a_library(text, tick):
    float(text)


def raised(work, task, workers):
    with pytest.raises(ValueError, match=r"level|convert") as refused:
        list(in_processes(work, [(task,)], workers, common=(), look=lambda done: None))
    return type(refused.value), str(refused.value)


def test_an_error_of_a_worker_process_is_what_it_is_without_one():
    for work, task, kind in ((sentence, 2.0, UserError), (of_a_library, "many", ValueError)):
        assert raised(work, task, workers=2) == raised(work, task, workers=1)
        assert raised(work, task, workers=2)[0] is kind
