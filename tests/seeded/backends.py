"""Faults of indexes and formats, where what the store promises depends on them."""

from __future__ import annotations

from seeded.fault import Fault

FAULTS = [
    Fault(
        name="message-with-two-references-goes-with-one",
        module="msgstore_ets_index.index",
        function="EtsIndex._release_shared",
        fragment="if left > 1:",
        replacement="if left > 2:",
        symptom="A message with three references is gone after two removals.",
        caught_by="tests/test_clients.py::test_a_message_that_many_clients_write_is_written_once",
    ),
]
