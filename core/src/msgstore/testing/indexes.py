"""What every index keeps. The tests follow :mod:`msgstore.contract.indexes`; what it leaves open they leave open."""

from __future__ import annotations

from msgstore.testing.index_commits import CommitTests
from msgstore.testing.index_entries import EntryTests
from msgstore.testing.index_live import LiveTests
from msgstore.testing.index_stops import StopTests


class IndexTests(EntryTests, StopTests, CommitTests, LiveTests):
    kinds = ("index",)
