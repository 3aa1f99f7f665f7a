"""Body codec ``erlang`` of msgstore: bodies as Erlang external terms, as RabbitMQ stores them."""
