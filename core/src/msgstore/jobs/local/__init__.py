"""The engine that every installation has: processes of this machine."""
