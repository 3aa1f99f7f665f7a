"""Compacting: ``GarbageCollector`` asks the GC policy for actions and carries them out, also on a thread of its own.

``in_place`` moves records inside a segment, ``copy_compaction`` copies them into new segments. Both work on pinned segments,
and commit the index before anything old is overwritten. The policies are plugins; those of core are in ``msgstore.builtin``.
"""
