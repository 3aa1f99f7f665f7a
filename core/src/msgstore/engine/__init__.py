"""The store. A message's way: client -> writer -> format -> segments -> index, and never back up."""
