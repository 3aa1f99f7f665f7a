"""The stress test: eight threads with a client each on one store, a collector beside them, and an exact account of all of it.

``bodies``       what an id's message has in it: a function of the id, so that any read can be verified by anybody
``findings``     what was not as it should be, and what was counted
``board``        what the threads tell each other, so that each knows what it may expect of the others' messages
``worker``       one thread: writes, reads, removes, flushes, and checks each answer
``running``      a whole run: threads, collector, the end of it, comparison with the model, ``verify``, reopening
``watchdog``     a hang becomes a failure with the stacks of all threads

No test waits for time to pass. What decides when the collector begins is how much was removed.
"""
