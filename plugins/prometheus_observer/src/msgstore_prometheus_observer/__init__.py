"""Metrics of msgstore's stores for Prometheus."""
