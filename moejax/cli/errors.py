"""What a user did wrong, as a sentence: printed without a traceback, exit status 2."""


class UserError(ValueError):
    """A mistake of the user's: what was given, the rule, the remedy."""
