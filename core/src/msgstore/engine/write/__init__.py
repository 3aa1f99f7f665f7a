"""Writing: from ``client.write`` to the confirmation.

``WriteBuffer.make_fast_path`` makes ``client.write``. ``Writer`` takes what the fast path does not, and decides when to flush,
or to drain a part of the buffer. A flush and a drain both pass ``Flusher`` -> ``BatchWriter`` -> ``Segments.append``, which
writes, and syncs if ``durability`` is ``fsync``: ``engine.open.startup`` tells ``Segments``, and ``engine.backends`` the index.
A flush then commits the index (``LiveAccounting.commit``), deletes empty segments, and confirms. ``BackgroundFlusher`` flushes
by the clock. Segment files are in ``engine.segment``.
"""
