"""A segment format and an index that are unlike msgstore's own, written with its public contract only."""
