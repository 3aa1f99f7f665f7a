"""The random fault harness: one failure in every file operation of a phase of a random store, and what is there afterwards.

``injection``  the operations of a phase, counted, and the one that fails
``model``      what a store has to hold: for each message the counts that are allowed; and one run on it
``history``    the stores to begin with, by a seed
``phases``     what is done while an operation fails, how a user goes on after it, and the next openings
``runs``       all operations and kinds of failure of one cell
"""
