"""The fault harness: one workload, recorded once, from which every state that a crash can leave is made and reopened.

``model``        what a store owes at each moment, and its comparison with an open store; also for ``faults``
``history``      steps that change a store and its model; also for ``faults``
``recording``    a file layer that reports every operation, and the workload run once on it: a log, LMDB's files included
``states``       from the log to directories: as a killed process leaves them, and as a power loss may
``points``       all of it together, in several processes: every crash point of a recording
``flips``        flipped bits in what a store has left on disk

``test_kill`` kills processes in which workers of ``stress`` use a store.
"""
