"""Jobs: bulk work on any number of segments, on one machine or on many.

A module per job (``salvage``, ``reconcile``, ``inventory``, ``diff``) has its options as a frozen
value, a function that plans it, functions for one segment or one task, and its report. A job runner (``local``, or one of a
plugin such as Spark) only calls these functions for all tasks, and groups their rows by id.

    inputs, tasks   paths -> segments in order of preference, with their record types -> tasks
    reading         one segment -> its records and its damage
    columns         one segment -> Arrow record batches, and rows -> messages
    messages        messages of any system: sources, sinks, and the conversion between them
    output          messages -> parts of a new store, written by workers -> the store, published by the driver

Everything that crosses a process is a small frozen value: paths, names and numbers. A worker loads formats and record types
from its own installed plugins (``workers``).

``columns``, ``reconcile`` and Parquet need pyarrow, the extra ``msgstore[parquet]``, and are imported late. Salvage, migration,
inventory and diff do without.
"""
