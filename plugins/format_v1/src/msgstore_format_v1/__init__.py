"""Segment format v1 (``.rdq``) of RabbitMQ's shared message store: untyped records, unmarked holes."""
