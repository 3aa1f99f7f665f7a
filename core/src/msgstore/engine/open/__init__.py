"""Opening: lock a directory, find its segments, recover the index.

``startup`` runs these steps in order, and undoes them if one fails. ``recovery_plan`` decides how the index is recovered,
``recovery`` carries that out, with the steps in ``reconcile``. ``broker`` serves directories of a broker. Opening never
shortens a segment. The lock file is in ``msgstore.writer_lock``.
"""
