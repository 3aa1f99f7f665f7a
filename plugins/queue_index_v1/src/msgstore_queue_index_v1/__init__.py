"""Queue index ``v1`` of msgstore-queues: the files of RabbitMQ's classic queues before index v2."""
