"""Writing: from ``client.write`` to the confirmation.

``WriteBuffer.make_fast_path`` makes ``client.write``. ``Writer`` takes what the fast path does not, and decides when to
flush. A flush passes ``Flusher`` -> ``BatchWriter`` -> ``Appender`` -> ``Segments.append``, which writes and syncs; then it
commits the index (``LiveAccounting.commit``), deletes empty segments, and confirms. ``background_flusher`` flushes by the
clock. Segment files are in ``engine.segment``.
"""
