"""State: live records and bytes of each segment, commits of the index, and the lifecycle of an open store.

``accounting`` holds the state lock and the flush lock, and orders commits and deletions. ``checkpoint`` is the state that is
saved in the index, ``clean_shutdown`` has the files of a clean shutdown. ``lifecycle`` has the rules for callbacks and
interrupts. ``accounting`` says which lock is held when.
"""
