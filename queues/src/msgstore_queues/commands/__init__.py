"""Commands ``queue`` and ``vhost`` of the program ``msgstore``."""
