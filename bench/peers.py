"""List of the stores and floors that are compared."""

from __future__ import annotations

from floors import Floor, LookupFloor
from ours import MappedMsgStore, MsgStore
from peer import Peer
from rivals import LMDB, RocksDB, SQLite

RIVALS = ("RocksDB", "LMDB", "SQLite")
"""Names of the peers that are stores."""
PEERS: tuple[type[Peer], ...] = (MsgStore, MappedMsgStore, RocksDB, LMDB, SQLite, Floor, LookupFloor)
