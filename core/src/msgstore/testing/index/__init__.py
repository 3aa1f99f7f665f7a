"""Tests of every index. They follow :mod:`msgstore.contract.indexes`; behaviour that it leaves open is not tested."""

from __future__ import annotations

from msgstore.testing.index.readers import ReaderTests
from msgstore.testing.index.saving import SavingTests


class IndexTests(ReaderTests, SavingTests):
    kinds = ("index",)
