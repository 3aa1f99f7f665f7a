"""Job runner of every installation: processes of this machine."""
