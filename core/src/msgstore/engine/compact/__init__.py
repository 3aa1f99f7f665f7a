"""Compacting: ``GarbageCollector`` asks the GC policy for actions, ``policy_actions`` checks them, and they are carried out.

``in_place`` moves records inside a segment, ``copy_compaction`` copies them into new segments. Both work on pinned segments,
and commit the index before anything old is overwritten. The policies are plugins; those of core are in ``msgstore.builtin``.
"""
