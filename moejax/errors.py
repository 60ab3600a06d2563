"""Define exceptions. The command line and notebooks print the message of a ``UserError`` without a traceback."""

from __future__ import annotations


class UserError(ValueError):
    """A user's mistake, with the given value, the rule and the remedy.

    It is raised wherever arguments, files, configs or tables that the user gives cannot be used. Any other exception is
    a bug in moejax.
    """

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines.
        return [f"{type(self).__name__}: {self}"]


class CoordinatedError(UserError):
    """An error that was sent to every process of a training run, so that all processes end."""


class ChildError(Exception):
    """A failure of a child process. The message names the log with the traceback."""


def out_of_memory(error: BaseException) -> str | None:
    """Return a sentence with the sizes that an out-of-memory exception states; None for other exceptions."""
    text = str(error)
    # Compare the name, since commands without JAX call this too.
    if type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in text:
        stated = text.partition("RESOURCE_EXHAUSTED: ")[2].splitlines()[0].strip().rstrip(".")
        return f"A device has too little memory: {stated}."
    if isinstance(error, MemoryError):
        return f"This machine has too little memory{': ' * bool(text)}{text.rstrip('.')}."
    return None


OURS = "this is a bug in moejax, not a mistake of yours; please report it with the command and the lines above."
"""Message below the traceback of any exception that is not a ``UserError``."""
