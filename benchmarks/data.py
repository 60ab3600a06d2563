"""Measure the speed of tokenization, packing and batching.

    python benchmarks/data.py --megabytes 160

    python benchmarks/data.py --megabytes 20 --store s3://BUCKET/FOLDER

Prepares JSON lines from the standard library's files, as bytes and with a BPE trained here, in one process and in one
process per core. Prints MB/s of text by wall and CPU time and the peak memory of a process, then the time to pack a
million documents and tokens per second of batches by number of reader threads. With --store, the dataset is also copied
to that folder and read from there. Needs three times the text's size on disk.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from moejax.data.config import DataConfig
from moejax.data.prepare import prepare
from moejax.data.rows import plan
from moejax.data.source import Document, SourceOptions
from moejax.data.sources import input_shards_of
from moejax.data.train_tokenizer import train_tokenizer


def write_text(folder: Path, megabytes: float) -> int:
    """Write one file of JSON lines, and return its bytes of text."""
    found = [document for shard in input_shards_of("python_stdlib", SourceOptions()) for document in shard.documents()]
    texts = [
        d.content.decode(errors="ignore") for d in found if isinstance(d, Document) and isinstance(d.content, bytes)
    ]
    written, copy = 0, 0
    with (folder / "web.jsonl").open("w") as file:
        while written < megabytes * 1e6:
            for text in texts:
                numbered = f"# {copy}\n{text}"
                file.write(json.dumps({"text": numbered}) + "\n")
                written += len(numbered.encode())
            copy += 1
    return written


def cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children, which hardly depends on the machine's load."""
    return sum(os.times()[:4])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--megabytes", type=float, default=160)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--store", metavar="URL")
    arguments = parser.parse_args()
    # One process must not use several cores by the tokenizer's threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "text").mkdir()
        size = write_text(folder / "text", arguments.megabytes)
        began = time.perf_counter()
        train_tokenizer(
            str(folder / "text"), folder / "tokenizer.json", vocab_size=arguments.vocab_size, max_bytes=10**7
        )
        print(f"BPE of {arguments.vocab_size} tokens learnt from 10 MB: {time.perf_counter() - began:.1f} s")
        for name, tokenizer in (("bytes", "bytes"), ("BPE", str(folder / "tokenizer.json"))):
            speeds, work = [], []
            for workers in (1, cores):
                out = folder / f"{name}-{workers}"
                began, before = time.perf_counter(), cpu_seconds()
                prepare(str(folder / "text"), out, tokenizer=tokenizer, workers=workers)
                speeds.append(size / 1e6 / (time.perf_counter() - began))
                work.append(size / 1e6 / (cpu_seconds() - before))
            print(
                f"{name}: {speeds[0]:.0f} MB/s in one process, {speeds[1]:.0f} in {cores}: {speeds[1] / speeds[0]:.2f}x"
            )
            print(f"  per CPU second {work[0]:.1f} MB and {work[1]:.1f} MB")
        largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(f"largest process: {largest / 2**20:.2f} GiB, for {size / 2**30:.2f} GiB of text")
        lengths = np.random.default_rng(0).lognormal(6, 1.2, 1_000_000).astype(np.int64) + 2
        began = time.perf_counter()
        _, pieces, rows = plan([np.cumsum(lengths)], 2049)
        took, fill = time.perf_counter() - began, pieces.sum() / (len(rows) - 1) / 2049
        print(f"a million documents packed into rows of 2,049 tokens: {took:.1f} s, {fill:.2%} full")
        # The import is local, since every worker imports this file and Grain is slow to import.
        from moejax.data.corpus import open_corpus
        from moejax.storage import open_storage

        places = {"disk": str(folder / "BPE-1")}
        if arguments.store:
            storage = open_storage(arguments.store)
            storage.put(f"{folder / 'BPE-1'}/", "", recursive=True)
            places["store"] = arguments.store
        for (where, source), packing in itertools.product(places.items(), ("windows", "documents")):
            config = DataConfig(source=source, packing=packing, sequence_length=2048)
            corpus, count = open_corpus(config, folder / f"data-{where}"), 200 if where == "disk" else 40
            for threads in (1, 4, 16, 32):
                batches = corpus.batches(batch=16, seed=0, threads=threads)
                next(batches)
                began, before = time.perf_counter(), cpu_seconds()
                for _ in range(count):
                    next(batches)
                tokens = count * 16 * 2048 / 1e6
                print(
                    f"{packing} from {where}, {threads} threads: {tokens / (time.perf_counter() - began):.2f} million "
                    f"tokens/s, {tokens / (cpu_seconds() - before):.2f} per CPU second"
                )


if __name__ == "__main__":
    main()
