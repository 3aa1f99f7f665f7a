"""Segment format v1 (``.rdq``) of RabbitMQ's shared message store: records without types, holes without marks."""
