"""Text of exceptions in error messages, in one line."""

from __future__ import annotations

import attrs


def said(error: BaseException) -> str:
    """Return the first line of an exception's text. Validators of attrs add their attribute to it, which is left out."""
    is_of_validator = len(error.args) > 1 and isinstance(error.args[1], attrs.Attribute)
    text = str(error.args[0] if is_of_validator else error)
    return text.strip().partition("\n")[0].rstrip()


def first_line(error: BaseException) -> str:
    """Return the class of an exception and the first line of its text."""
    return f"{type(error).__name__}: {said(error)}"
