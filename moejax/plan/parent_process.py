"""End this process with the process that started it."""

from __future__ import annotations

import os
import threading
import time

from moejax.say import say


def end_with(parent: int | None) -> None:
    """End this process soon after its parent has ended for any reason; None keeps it alive."""
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        try:
            say("What started this process is gone; stopping.")
        finally:
            # This also holds if the output can no longer be written.
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
