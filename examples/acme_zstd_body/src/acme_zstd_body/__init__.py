"""The body codec ``zstd``: bodies as Zstandard frames."""
