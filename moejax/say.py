"""What a person is told beside a result: on stderr, as text that can be printed, whatever names are in it."""

from __future__ import annotations

import sys
from typing import TextIO

from moejax.wording import one_line


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print each as a line of its own, to stderr or ``file``.

    A name may hold a line break or what moves a terminal's cursor: it is shown as an escape.
    """
    print(*(one_line(str(line)) for line in lines), sep="\n", file=file or sys.stderr, flush=True)
