"""Reading: ``Reader`` finds a message in the write buffer, else through the index with one ``pread``.

A strategy says how a read gets a consistent look: under the state lock (``LockedStrategy``), or next to a writer in another
process (``FollowingStrategy``, with ``writer_tracker`` and ``segment_file_cache``). Opening such a store is in
``engine.live_store``.
"""
