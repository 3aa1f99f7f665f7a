"""Jobs of :mod:`msgstore.jobs` on DataFrames: core processes segments in tasks, Spark shuffles and joins their rows."""
