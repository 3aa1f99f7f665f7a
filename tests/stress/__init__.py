"""The stress test: eight threads with a client each on one store, which they also collect, and an exact account of all of it.

No test waits for time to pass. How much was removed decides when a thread collects.
"""
