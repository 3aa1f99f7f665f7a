"""The storage engine: ``Store`` and ``Client``, over packages for writing, reading, compacting and opening.

A message passes client -> write buffer; then, in a batch of a flush, format -> record type -> segment -> index -> confirm.
Calls go to lower layers only: the store gives them a callable if they must inform it. ``backends`` resolves the names of a
configuration to plugins; ``opening`` has the ways to a store. Tools that read segments without a store are in
``msgstore.scan``.
"""
