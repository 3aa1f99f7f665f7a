"""Body codec ``zstd``: bodies as Zstandard frames."""
