"""Faults that are put into the code one at a time, to see that the tests find each: see ``tests/seeded_faults.py``."""
