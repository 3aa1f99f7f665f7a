"""Plugins: discovery and registration (loader), selection by name (catalogue)."""
