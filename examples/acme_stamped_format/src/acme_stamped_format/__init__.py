"""Segment format ``stamped``: each record has the time at which it was written."""
