"""Data of ``msgstore demo``: a store directory that RabbitMQ wrote in the middle of an upgrade from v1 to v2.

``mixed_upgrade/`` is the directory after a clean shutdown of the broker. ``refcounts.csv`` lists its live messages: id,
references, and the SHA-256 of the stored body.
"""
