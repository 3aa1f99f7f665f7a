"""Registration of the commands. They are imported when they are called."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import CommandDescriptor


@hookimpl
def msgstore_commands() -> list[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="queue",
            contract=(1, 0),
            factory="msgstore_queues.commands.queue:queue",
            summary="Publish, get and count messages of msgstore's queues.",
        ),
        CommandDescriptor(
            name="vhost",
            contract=(1, 0),
            factory="msgstore_queues.commands.vhost:vhost",
            summary="List, add, stop, start and delete vhosts with queues.",
        ),
    ]
