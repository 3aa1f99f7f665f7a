"""Queue index ``v2`` of msgstore-queues: the files of RabbitMQ's classic queues since 3.10."""
