"""Jobs over any number of segments, on one machine or on many.

What a message passes, room by room::

    inputs, tasks   paths -> segments, ranked, with the record types of their directories -> shares
    reading         one segment -> what stands in it, byte by byte, whatever is wrong with it
    columns         one segment -> Arrow record batches: its records, its damage, a summary; and back: rows -> messages
    jobs            a job: a frozen value that says everything, functions for one segment or one task, a report
    engine          who carries jobs out: ``local`` (processes of this machine), others by plugins
    fresh           messages -> parts of a fresh store, by workers -> the store, by the driver; the same for Parquet

Everything that crosses a process is a small frozen value: paths, names and numbers. A worker makes formats and record types of
its own installed plugins (``workers``); no plugin and no body travels with a task.

Imported late, because they need pyarrow, the extra ``msgstore[parquet]``: what makes columns, and what of the jobs works in
them (``export``, ``reconcile``, ``import`` of Parquet). Salvage, migration, inventory and diff do without.
"""
