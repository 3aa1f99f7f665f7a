"""Parts of error messages: the text of exceptions, in one line, and what installs a distribution of the project."""

from __future__ import annotations

import attrs

CHECKOUT = "pip install ./core ./queues ./libs/* ./plugins/*"
"""Installs all of the project but what needs Spark, in a checkout."""


def said(error: BaseException) -> str:
    """Return the first line of an exception's text. Validators of attrs add their attribute to it, which is left out."""
    is_of_validator = len(error.args) > 1 and isinstance(error.args[1], attrs.Attribute)
    text = str(error.args[0] if is_of_validator else error)
    return text.strip().partition("\n")[0].rstrip()


def first_line(error: BaseException) -> str:
    """Return the class of an exception and the first line of its text."""
    return f"{type(error).__name__}: {said(error)}"


def install_line(distribution: str) -> str:
    """Return what installs a distribution of the project."""
    spark = " './pipeline[java]'" if distribution == "msgstore-spark" else ""
    return f"pip install {distribution}, or in a checkout: {CHECKOUT}{spark}"
