"""Body codec ``aes-gcm``: encrypted bodies, each bound to the id of its message."""
