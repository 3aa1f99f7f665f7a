"""One segment for a job: read to its end whatever is wrong with it."""
