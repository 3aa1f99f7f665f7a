"""Record type ``audit`` of segment format v2: a message with the time at which it was written, and an actor."""
