"""Command ``msgstore find``: find messages by a text in their bodies."""
