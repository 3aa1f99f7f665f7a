"""Commands ``ls``, ``get``, ``put`` and ``rm``: list, read, write and remove messages."""

from __future__ import annotations

import base64
import errno
import hashlib
import shutil
import sys
from collections import Counter

import click

from msgstore.cli import options, output
from msgstore.cli.option_texts import note_defaults
from msgstore.contract import CorruptRecord, MessageNotFound, StoredBody
from msgstore.scan import Described, describe

_ROW = "{:<32}  {:>6}  {:>12}  {:>10}  {:>4}  {}"
_HASH_COLUMN = len(_ROW.format("", "", "", "", "", ""))
_id = click.argument("msg_id", metavar="ID", type=options.message_id)


@click.command()
@options.read
@click.option("--fields", is_flag=True, help="Show the record type and the fields of the record instead of the hash.")
@options.as_json
def ls(store: options.StoreTarget, fields: bool, out: output.Output) -> None:
    """List the live messages, by segment and offset. Writes nothing.

    The hash is the SHA-256 of the stored body. Exit code 1 if any segment is damaged: messages may be missing.

    \b
    Examples:
      msgstore ls data/orders
      msgstore ls data/orders --fields
      msgstore ls orders --config msgstore.toml --json | jq -r .id
    """
    digits = max(shutil.get_terminal_size().columns - _HASH_COLUMN - 1, 8) if sys.stdout.isatty() else 64
    with store.find().open("r") as opened, out.lines() as line:
        if not out.as_json:
            line(_ROW.format("id", "file", "offset", "size", "refs", "record" if fields else "sha256 of the stored body"))
        stats = opened.stats()
        damaged = bool(stats.recovery.damaged or stats.quarantined)
        for entry in opened.entries():
            described, body_sha256 = Described(None), None
            try:
                record = opened.record(entry)
                described, body_sha256 = describe(record), hashlib.sha256(record.body).hexdigest()
            except MessageNotFound:  # removed meanwhile by another process
                continue
            except CorruptRecord as error:
                output.note(str(error))
                damaged = True
            place = {"id": entry.msg_id.hex(), "file": entry.number, "offset": entry.offset, "size": entry.size}
            place["refs"] = entry.references
            if out.as_json:
                line({**place, **described.as_json(), "body_sha256": body_sha256})
                continue
            text = "damaged" if body_sha256 is None else body_sha256[:digits]
            if fields and body_sha256 is not None:
                text = " ".join([described.record or "-", *(f"{name}={value}" for name, value in described.as_text().items())])
            line(_ROW.format(*place.values(), text))
    if stats.quarantined and not stats.recovery.damaged:
        segments = output.plural(stats.quarantined, "segment")
        output.note(f"damage was found in {segments} earlier. 'msgstore verify' lists what is damaged now.")
    out.finish(damaged=damaged)


@click.command()
@options.read
@_id
@click.option("--fields", is_flag=True, help="Print the record type and the fields of the record instead of the body.")
@options.as_json
def get(store: options.StoreTarget, msg_id: bytes, fields: bool, out: output.Output) -> None:
    """Write the body of one message to standard output, byte for byte. Writes nothing into the store.

    On a terminal, a line break is added if the body does not end with one.

    \b
    Examples:
      msgstore get data/orders 00112233445566778899aabbccddeeff > body
      msgstore get data/orders 00112233445566778899aabbccddeeff --fields
    """
    target = store.find()
    with target.open("r") as opened, opened.client() as client:
        body, references = client.read(msg_id), opened.references(msg_id)
        entry = opened.entry(msg_id) if fields or out.as_json else None
        described = describe(opened.record(entry)) if entry else Described(None)
    if out.as_json:
        as_stored = isinstance(body, StoredBody) or target.config.body.name == "raw"
        members = {"as_stored": as_stored, "body_sha256": hashlib.sha256(body).hexdigest()}
        members |= {} if fields else {"body_base64": base64.b64encode(body).decode()}
        out.emit({"id": msg_id.hex(), "size": len(body), "refs": references, **described.as_json(), **members})
    elif fields:
        shown = {"record": described.record or "-", **described.as_text(), "size": output.size(len(body)), "refs": references}
        for name, value in shown.items():  # not as a table: it would wrap long values
            click.echo(output.visible(f"{name:<{max(map(len, shown))}}  {value}"))
    else:
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        if sys.stdout.isatty() and not body.endswith(b"\n"):
            click.echo()


@click.command()
@options.changed
@_id
@options.as_json
def put(store: options.StoreTarget, msg_id: bytes, out: output.Output) -> None:
    """Write one message with the body from standard input. It is on disk when the program ends.

    An id names one body permanently. If the message exists, it gets one more reference, and its body does not change.

    \b
    Examples:
      msgstore put data/orders 00112233445566778899aabbccddeeff < body
    """
    if sys.stdin is None:
        raise OSError(errno.EBADF, "is closed", "standard input")
    body = sys.stdin.buffer.read()
    with store.open("rw") as opened, opened.client() as client:
        client.write(msg_id, body)
        references = opened.references(msg_id)
    out.emit({"id": msg_id.hex(), "size": len(body), "refs": references})
    out.print(msg_id.hex())
    if store.config_file is None:
        note_defaults(store.catalogue, store.config.format.name, store.config.record, "--config FILE gives others")
    if references > 1:
        output.note(f"{msg_id.hex()} existed already. It has {references} references now, and its body is unchanged.")


@click.command()
@options.changed
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=options.message_id)
@options.as_json
def rm(store: options.StoreTarget, ids: tuple[bytes, ...], out: output.Output) -> None:
    """Remove one reference from each message. A message without references is gone.

    If an id is absent, it is reported, the others are removed, and the exit code is 2.

    \b
    Examples:
      msgstore rm data/orders 00112233445566778899aabbccddeeff
    """
    failure = None
    with store.find().open("rw") as opened, opened.client() as client:
        try:
            client.remove(ids)
        except MessageNotFound as error:
            failure = error
        left = {msg_id: opened.references(msg_id) for msg_id in ids}
    absent = Counter(failure.ids if failure else ())
    for msg_id, given in Counter(ids).items():
        removed = given - absent[msg_id]
        out.emit({"id": msg_id.hex(), "removed": removed, "absent": absent[msg_id] > 0, "refs": left[msg_id]})
        if removed:
            out.print(f"{msg_id.hex()}" + (f" ({output.plural(left[msg_id], 'reference')} left)" if left[msg_id] else ""))
    if failure is not None:
        raise failure
