"""Fuzzing of everything that parses bytes from disk; what there is to fuzz is the list in :mod:`fuzzing.targets`."""
