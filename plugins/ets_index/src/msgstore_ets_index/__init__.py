"""Index ``ets`` of msgstore: all entries in memory, saved in a snapshot at a clean shutdown."""
