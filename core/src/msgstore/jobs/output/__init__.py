"""Writing what is new in parallel, a store or a directory of Parquet: parts by workers, one commit by the driver."""
