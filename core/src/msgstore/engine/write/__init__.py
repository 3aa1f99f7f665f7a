"""Writing: from ``client.write`` to the confirmation.

``WriteBuffer.make_fast_path`` makes ``client.write``. ``Writer`` takes what the fast path does not, and decides when to flush,
or to drain a part of the buffer. A flush and a drain pass ``Flusher`` -> ``BatchWriter`` -> ``Segments.append``. With the
durability ``fsync`` there are no drains, and ``Segments.append`` syncs what it has written: ``engine.open.startup`` says so to
``Segments``, and ``engine.backends.make_index`` to the index. A flush then commits the index (``LiveAccounting.commit``),
deletes empty segments, and confirms. ``BackgroundFlusher`` flushes by the clock. Segment files are in ``engine.segment``.
"""
