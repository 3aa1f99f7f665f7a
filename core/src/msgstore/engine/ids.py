"""Message ids: 16 bytes, chosen by the client."""

from __future__ import annotations


def check_id(msg_id: object) -> None:
    """Raise ValueError unless ``msg_id`` is 16 bytes."""
    if not isinstance(msg_id, bytes):
        raise ValueError(f"a message id is 16 bytes, not {type(msg_id).__name__}")  # noqa: TRY004 - documented as ValueError
    if len(msg_id) != 16:
        raise ValueError(f"a message id is 16 bytes, not {len(msg_id)}: {msg_id!r}")
