"""Writing a new store in parallel: parts by workers, one commit by the driver."""
