"""The index ``ets`` of msgstore: everything in memory, a snapshot at a clean stop."""
