"""Segment format v2 (``.sqs``) of RabbitMQ's shared message store: a header, typed records and explicit holes."""
