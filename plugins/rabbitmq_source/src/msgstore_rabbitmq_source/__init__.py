"""Queues of a RabbitMQ node, for msgstore."""
