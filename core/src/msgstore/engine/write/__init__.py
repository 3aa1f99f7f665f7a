"""Writing: from ``client.write`` to the confirmation.

``WriteBuffer.make_fast_path`` makes ``client.write``. ``Writer`` takes what the fast path does not, and decides when to flush,
or to drain a part of the buffer. A flush and a drain pass ``Flusher`` -> ``BatchWriter``, which calls ``OpenFormat.encode`` (in
``scan.formats``: it calls the plugin) and ``Segments.append``. With the durability ``fsync`` there are no drains, and
``Segments.append`` syncs what it has written. A flush then commits the index
(``LiveAccounting.commit``), deletes empty segments, and confirms. With ``fsync_every`` a flush confirms without a commit;
``BackgroundFlusher``, which flushes by the clock, later calls ``Flusher.sync_and_commit``: ``Segments.sync_written``, then the
commit. What is synced when is decided at the opening: ``Segments`` gets ``sync=`` from ``engine.open.startup``, and the index
``IndexContext.sync`` from ``engine.backends.make_index``. Segment files are in ``engine.segment``.
"""
