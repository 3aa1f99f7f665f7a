"""Segments and counts as Arrow columns, and Parquet. All but ``arrow`` and ``codecs`` needs pyarrow: ``msgstore[parquet]``."""
