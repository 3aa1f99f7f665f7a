"""Index ``sqlite``: persistent, in memory and in one SQLite file."""
