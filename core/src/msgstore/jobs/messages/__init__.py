"""Messages of any system: detect sources, list queues and messages, convert into a sink."""
