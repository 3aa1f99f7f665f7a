"""``ShutDown`` and ``QueueShutDown``, which the modules ``queue`` and ``asyncio`` have since Python 3.13."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 13):
    from asyncio import QueueShutDown
    from queue import ShutDown
else:

    class ShutDown(Exception):
        """The queue was shut down."""

    class QueueShutDown(Exception):
        """The queue was shut down. Raised by the asyncio API."""


__all__ = ["QueueShutDown", "ShutDown"]
