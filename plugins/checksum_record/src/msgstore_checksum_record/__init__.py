"""MESSAGE_WITH_CHECKSUM: a record type of segment format v2 whose records carry a CRC-32C of themselves."""
