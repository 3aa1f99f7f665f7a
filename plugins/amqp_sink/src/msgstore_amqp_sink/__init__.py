"""Sink of a broker of AMQP 0-9-1, for msgstore."""
