"""A format's golden corpus: segments that were written once, and have to be read in the same way for ever.

Data that its author ships: a directory ``golden`` beside the module of the factory, and in it for each segment the file
``NAME<extension>`` and ``NAME.json``, which says what is in it. The second is written by

    python -m msgstore.testing.golden NAME<extension> ...

for its author to check once by eye: ids, offsets, sizes and types of records and copies, the SHA-256 of each body as it is
stored, fields, holes, damage, and the end. It refuses a segment without records, or whose scan ends corrupt, unless
``--damaged`` says that it is so on purpose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import attrs
import click

from msgstore.contract import Columns, RecordField, json_value
from msgstore.plugins.catalogue import load_catalogue
from msgstore.scan import FormatSet
from msgstore.testing.subjects import Subject


def golden(subject: Subject) -> Iterator[tuple[Traversable, Traversable]]:
    """Each segment of the corpus with what is said of it. Raises FileNotFoundError if one of the two is missing."""
    package = subject.descriptor.factory.partition(":")[0].rpartition(".")[0]
    directory = resources.files(package) / "golden" if package else None
    if directory is None or not directory.is_dir():
        return
    extension = subject.descriptor.extension
    for name in sorted({Path(file.name).stem for file in directory.iterdir() if file.name.endswith((extension, ".json"))}):
        segment, said = directory / f"{name}{extension}", directory / f"{name}.json"
        for file in (segment, said):
            if not file.is_file():
                raise FileNotFoundError(f"{file}: a golden segment is a pair, NAME{extension} and NAME.json")
        yield segment, said


def described(form: Any, fields: Sequence[RecordField], data: bytes) -> dict[str, Any]:
    """Return the result of a scan in the form of the corpus. ``fields``: those of the format's descriptor."""

    def told(columns: Columns) -> list[dict[str, Any]]:
        found = []
        for msg_id, offset, size, kind in columns.rows():
            record = data[offset : offset + size]
            sha256 = hashlib.sha256(form.decode(msg_id, record)).hexdigest()
            found.append({"id": msg_id.hex(), "offset": offset, "size": size, "type": kind, "body_sha256": sha256})
            if fields:
                found[-1]["fields"] = {
                    it.name: json_value(value) for it, value in zip(fields, form.fields(record), strict=True)
                }
        return found

    scan = form.scan(data)
    return {
        "header": scan.header,
        "records": told(scan.records),
        "duplicates": told(scan.duplicates),
        "holes": [list(hole) for hole in zip(scan.hole_offsets, scan.hole_sizes, strict=True)],
        "damage": [attrs.asdict(spot) for spot in scan.damage],
        "end": attrs.asdict(scan.end),
    }


def check_readable(file: Path, said: dict[str, Any]) -> None:
    """Raise UsageError for a description that would say for ever that a segment cannot be read."""
    end = said["end"]
    if end["state"] == "corrupt":
        problem = f"the scan ends at offset {end['offset']:,}, corrupt: {end['reason']}"
    elif not said["records"] and not said["duplicates"]:
        problem = "there is no record in it"
    else:
        return
    raise click.UsageError(
        f"{file}: {problem}. Nothing was written. Write a segment with the format's own record type, since no other is bound "
        "here; for one that is damaged on purpose, add --damaged."
    )


@click.command()
@click.option("--damaged", is_flag=True, help="Also describe segments without records, or whose scan ends corrupt.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(files: Sequence[Path], *, damaged: bool) -> None:
    """Write NAME.json beside each of FILES, segments of an installed format: what is in it."""
    descriptions: dict[Path, dict[str, Any]] = {}
    formats = FormatSet(load_catalogue())
    for file in files:
        if file.suffix not in formats.extensions:
            raise click.UsageError(f"{file}: no installed format has files {file.suffix or 'without an extension'}")
        found = formats.by_extension(file.suffix)
        descriptions[file] = said = described(found.format, found.descriptor.fields, file.read_bytes())
        if not damaged:
            check_readable(file, said)
    for file, said in descriptions.items():
        file.with_suffix(".json").write_text(json.dumps(said, indent=1) + "\n")
        click.echo(file.with_suffix(".json"))


if __name__ == "__main__":
    main(prog_name="python -m msgstore.testing.golden")
