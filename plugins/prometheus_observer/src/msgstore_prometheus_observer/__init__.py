"""Prometheus metrics of the open stores of a process."""
