"""What the user can mend, as an exception of its own: the command line prints its sentence and no traceback."""


class UserError(ValueError):
    """A mistake in what was asked: a sentence with what was given, the rule and the remedy.

    Raised on purpose, wherever words, files, configs or tables that came from outside cannot be used. What else is
    raised is a mistake of moejax's.
    """


class CoordinatedError(UserError):
    """An error that every process of a training knows of, so that all of them end."""


OURS = "this is a mistake of moejax's and not yours; please report it, with the command and the lines above."
"""What stands below the traceback of an exception that is no ``UserError``."""
