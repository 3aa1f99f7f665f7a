"""Reading: ``Reader`` finds a message in the write buffer, else through the index with one ``pread``.

``LiveReader`` reads next to a writer in another process. Opening such a store is in ``engine.opening``.
"""
