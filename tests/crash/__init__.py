"""The fault harness: one workload, recorded once, from which every state that a crash can leave is made and reopened.

``workload``     what is done to a store, step by step, and what the store owes at each moment
``watching``     a file layer that tells of every file operation before and after it happens
``recording``    the workload run once on that layer: a log of operations with their data, LMDB's files included
``states``       from the log to directories: as a killed process leaves them, and as a power loss may
``invariants``   what a reopened store must show
``points``       all of it together: every crash point of a recording
``flips``        flipped bits in what a store has left on disk
``running``      points, failures and flips in several processes
``child``        a process in which workers of ``stress`` are killed

The tests beside these modules run them over the cells of the matrix, and show that broken builds are caught.
"""
