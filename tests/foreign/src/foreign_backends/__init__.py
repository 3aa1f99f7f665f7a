"""Segment format and index that differ from msgstore's own, written with msgstore's public contract only."""
