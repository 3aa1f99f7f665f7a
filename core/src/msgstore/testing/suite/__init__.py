"""The kit as a suite: ``pytest --pyargs msgstore.testing.suite --msgstore-dist NAME``."""
