"""Read the embedded corpus: source files of the running Python's standard library.

Every machine has these files, so a first training run needs no download. The corpus differs between Python versions;
its hash is stored with every run. A file's split is determined by its path, which stays the same if its text changes.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from moejax.data.source import InputShard, SourceOptions, file
from moejax.data.sources.text_files import gathered

_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


def input_shards(options: SourceOptions) -> Iterator[InputShard]:
    """Yield the ``.py`` files of the standard library without its tests, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    paths.sort(key=lambda path: path.relative_to(root).as_posix())
    return gathered([file(path) for path in paths], root, split_by_path=True)
