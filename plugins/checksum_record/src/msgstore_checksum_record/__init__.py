"""MESSAGE_WITH_CHECKSUM: a record type of segment format v2 with a CRC-32C of each record."""
