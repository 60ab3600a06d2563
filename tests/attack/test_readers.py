"""Damaged files end in the right content or in a sentence, in bounded time and memory."""

import gzip
import os
import re
import resource
import signal
import subprocess
import sys
import zlib

import numpy as np
import pytest
from readers import READERS, damaged, fault

MOST_SECONDS = 100
"""Of the processor's time for the damaged files of one format."""
MOST_MIB = 400
"""Of memory, the imports of libraries included."""


def attacked(name, count, folder, number=1):
    """The faults of reading damaged files of a format, each with its first example."""
    reader, random = READERS[name], np.random.default_rng([number, zlib.crc32(name.encode())])
    whole = next(iter(reader.files.values()))
    begins = len(whole) - reader.kept
    faults = {}
    for _ in range(count):
        content = damaged(whole[:begins], random) + whole[begins:]
        if content != whole and (wrong := fault(reader, content, folder)):
            faults.setdefault(wrong, content)
    return faults


@pytest.fixture
def within_limits():
    """Ends a test that takes more of the processor's time, or more memory, than damaged files of a few KB may."""

    def endless(number, frame):
        raise TimeoutError("a reader does not come to an end")

    previous = signal.signal(signal.SIGVTALRM, endless)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, previous)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MIB * 1024


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_is_read(name, tmp_path):
    reader = READERS[name]
    whole = next(iter(reader.files.values()))
    assert fault(reader, whole, tmp_path) == ""
    assert reader.read(tmp_path, next(iter(reader.files)))[0] == reader.right(whole)


@pytest.mark.usefixtures("within_limits")
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_right_or_end_in_a_sentence(name, tmp_path):
    assert attacked(name, 60, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("within_limits")
@pytest.mark.parametrize("name", READERS)
def test_two_thousand_damaged_files_are_read_right_or_end_in_a_sentence(name, tmp_path):
    assert attacked(name, 2_000, tmp_path, int(os.environ.get("MOEJAX_ATTACK_SEED", "1"))) == {}


BOMB = """
import sys
from resource import RUSAGE_SELF, getrusage
from moejax import run_table
from moejax.data.source import SourceOptions
from moejax.data.sources import input_shards_of
before = getrusage(RUSAGE_SELF).ru_maxrss
if sys.argv[1].endswith(".jsonl.gz"):
    print([str(one) for shard in input_shards_of(sys.argv[1], SourceOptions()) for one in shard.documents()])
else:
    try:
        run_table.read(sys.argv[1])
    except ValueError as error:
        print(error)
print("MiB:", (getrusage(RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "behind", "words"),
    [
        ("a.jsonl.gz", b'\n{"text": "good"}\n', "a line of more than 268,435,456 bytes.*content=b'good'"),
        ("a.csv.gz", b"", "it has more than 1,000,000,000 bytes, unpacked"),
    ],
)
def test_a_line_of_three_gigabytes_in_a_small_file_is_not_kept_in_memory(name, behind, words, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"x" * 2**26) * 48 + gzip.compress(behind))
    assert path.stat().st_size < 4e6
    ended = subprocess.run([sys.executable, "-c", BOMB, path], capture_output=True, text=True, check=True)
    assert re.search(words, ended.stdout)
    assert int(ended.stdout.split("MiB: ")[1]) < 1_200
