"""Files of a RabbitMQ node: pure functions over bytes, from the standard library alone. Nothing here opens a file."""
