"""The process that started this one, which does not outlive it."""

from __future__ import annotations

import os
import threading
import time

from moejax.say import say


def end_with(parent: int | None) -> None:
    """End this process soon after its parent is gone, however the parent went. ``None``: it may outlive it."""
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        try:
            say("What started this process is gone; stopping.")
        finally:
            # Also where nobody reads any more what it says.
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
