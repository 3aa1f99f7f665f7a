"""The record type ``audit`` of segment format v2: a message with the time of its writing and an actor."""
