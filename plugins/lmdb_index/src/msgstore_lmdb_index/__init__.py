"""Index ``lmdb`` of msgstore: persistent, with reference counts that survive a crash."""
