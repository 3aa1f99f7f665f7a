"""Segments and counts as Arrow columns, and Parquet. Needs pyarrow: ``msgstore[parquet]``."""
