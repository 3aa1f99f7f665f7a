"""Segment format v2 (``.sqs``) of RabbitMQ's shared message store: a header, then typed records and explicit holes."""
