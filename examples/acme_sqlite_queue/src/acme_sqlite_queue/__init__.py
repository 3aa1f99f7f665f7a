"""Backing queue ``sqlite``: all messages of a queue in one SQLite file."""
