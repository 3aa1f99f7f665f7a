"""The storage engine: ``Store`` and ``Client``, over packages for writing, reading, compacting and opening.

A message passes client -> write buffer -> format -> segment -> index -> confirm. Calls go downwards only: the store gives
lower layers a callable if they must inform it. ``backends`` resolves the names of a configuration to plugins; ``opening``
and ``live_opening`` are the ways to a store. Tools that read segments without a store are in ``msgstore.scan``.
"""
