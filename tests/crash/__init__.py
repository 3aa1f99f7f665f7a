"""The fault harness: what crashes and failing file operations may leave of a store is made, and opened again.

``model``        what a store owes at each moment, and its comparison with an open store
``history``      steps that change a store and its model, and the workload whose crash points are tried
``files``        a file layer that reports every operation, and one in which operations fail
``recording``    the workload run once: a log of operations, LMDB's files included
``states``       from the log to directories: as a killed process leaves them, and as a power loss may

``test_random_faults`` has random stores in which each file operation of a phase fails. ``test_kill`` kills processes in which
workers of ``stress`` use a store.
"""
