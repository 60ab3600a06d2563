"""What the user can mend, as an exception of its own: the command line prints its sentence and no traceback."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what was asked: a sentence with what was given, the rule and the remedy.

    Raised on purpose, wherever words, files, configs or tables that came from outside cannot be used. What else is
    raised is a mistake of moejax's.
    """


class CoordinatedError(UserError):
    """An error that every process of a training knows of, so that all of them end."""


class ChildError(Exception):
    """A failure of a process that this one started, whose log has the traceback; the sentence names the log."""


def out_of_memory(error: BaseException) -> str | None:
    """Return a sentence with the sizes that an exception states if it means that memory ran out, else None."""
    text = str(error)
    # By its name, as commands without JAX ask too.
    if type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in text:
        stated = text.partition("RESOURCE_EXHAUSTED: ")[2].splitlines()[0].strip().rstrip(".")
        return f"A device has too little memory: {stated}."
    if isinstance(error, MemoryError):
        return f"This machine has too little memory{': ' * bool(text)}{text.rstrip('.')}."
    return None


OURS = "this is a mistake of moejax's and not yours; please report it, with the command and the lines above."
"""What stands below the traceback of an exception that is no ``UserError``."""
