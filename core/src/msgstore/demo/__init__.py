"""What ``msgstore demo`` works on: a store directory that RabbitMQ wrote in the middle of an upgrade from v1 to v2.

``mixed_upgrade/`` is the directory as the broker left it at a clean stop. ``refcounts.csv`` names its live messages: id,
references, and the SHA-256 of the body as stored.
"""
