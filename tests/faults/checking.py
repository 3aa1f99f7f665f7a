"""The next openings, without failures: what is there must be what the model allows, and stay."""

from __future__ import annotations

import msgstore
from faults.history import open_store
from faults.model import body_of, differences
from faults.phases import Run


def check(run: Run) -> None:
    """Two openings, each closed cleanly."""
    since = f"the {run.cell.phase}"
    try:
        with run.open(sync_interval=0) as store:  # without a thread
            found = _contents(run, store)
            run.tell(differences(run.model.kept, found, since))
        with open_store(run.path, run.keys | {"sync_interval": 0}) as store:
            again = _contents(run, store)
            run.tell(differences({msg_id: frozenset({count}) for msg_id, count in found.items()}, again, "a clean close"))
    except msgstore.MsgStoreError as error:
        run.tell([f"the next opening raises {type(error).__name__}: {error}"])


def _contents(run: Run, store: msgstore.Store) -> dict[bytes, int]:
    """Id to count; bodies are compared."""
    found = {}
    client = store.client()
    for entry in store.entries():
        found[entry.msg_id] = entry.references
        try:
            if client.read(entry.msg_id) != body_of(entry.msg_id):
                run.tell([f"message {entry.msg_id.hex()[:8]}.. is there with other bytes"])
        except msgstore.MsgStoreError as error:
            run.tell([f"message {entry.msg_id.hex()[:8]}.. cannot be read: {error}"])
    return found
