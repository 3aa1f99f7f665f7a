"""Backing queues of this distribution. No queue, and no vhost: they are below those."""
