"""Built-in policies, codecs and the local job runner. They register through the same hooks as plugins."""
