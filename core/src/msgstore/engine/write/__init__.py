"""Writing: ``Writer`` takes messages into the write buffer, ``Flusher`` appends and confirms them in batches.

A batch passes ``flusher`` -> ``batch_writer`` -> ``appender``: records are on disk before the index points to them.
``background_flusher`` flushes by the clock. Segment files themselves are in ``engine.segment``, commits of the index in
``engine.state.accounting``.
"""
