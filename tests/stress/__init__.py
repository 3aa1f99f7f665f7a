"""The stress test: eight threads with a client each on one store, which they also collect, and an exact account of all of it.

``worker``       one thread: writes, reads, removes, flushes, collects, and checks each answer; what threads tell each other
``running``      a whole run: threads, the end of it, comparison with the model, ``verify``, reopening

No test waits for time to pass. How much was removed decides when a thread collects.
"""
