"""Journals of Kestrel, for msgstore."""

from msgstore_kestrel_journal.replay import Replay, replay

__all__ = ["Replay", "replay"]
