"""Registration of the command ``find``. The command is imported when it is called."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import CommandDescriptor


@hookimpl
def msgstore_commands() -> list[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="find",
            contract=(1, 0),
            factory="acme_find_command.command:find",
            summary="Find messages by a text in their bodies.",
        )
    ]
