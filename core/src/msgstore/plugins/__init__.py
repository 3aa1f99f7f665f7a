"""Finding plugins (loader) and choosing among what they registered (catalogue)."""
