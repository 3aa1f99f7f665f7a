"""The jobs: each a frozen value that says everything, functions for one segment or one task, and a report."""
