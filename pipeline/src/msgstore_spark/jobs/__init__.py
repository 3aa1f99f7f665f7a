"""The jobs of :mod:`msgstore.jobs` on DataFrames. What happens to a segment is core's; what is moved and joined is Spark's."""
