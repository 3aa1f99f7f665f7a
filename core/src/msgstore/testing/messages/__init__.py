"""Tests of sources and sinks of messages, and of both together."""
