"""Tests of what a source makes of damaged and foreign files. The base of ``SourceTests``."""

from __future__ import annotations

import errno
import inspect
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import pytest

from msgstore.contract import Capability, MessageBatch, MsgStoreError, PluginError, SourceDamage
from msgstore.jobs.messages import sources
from msgstore.jobs.messages.rows import rows_of
from msgstore.testing.faults import address_space
from msgstore.testing.messages.reading import (
    Place,
    Sample,
    check_places,
    check_rows,
    messages_of,
    places_of,
    rows,
    verified_bodies,
)
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.probes import is_linear, measured, within
from msgstore.testing.subjects import Subject

CLAIMS = (b"\x04", b"\xff\xff\xff\x1f", b"\xff" * 8)
"""High byte of a number of 4 bytes, or of the low ones of 8, in either order; a number of 7 bits in a byte; and -1."""
_CLAIMS = 64
"""Places of a sample where there are such numbers."""
_LONGEST, _MOST = 9 * 2**20, 1_200_000
"""Bytes and messages of the longest file: more than one batch."""
_LONG = 2**17
"""Bytes of a long file."""
_CUTS = 24
"""Places in each file of the sample that are damaged, and records with a damaged head."""


class SourceDamageTests(KitTests):
    kinds = ("source",)

    @pytest.fixture
    def sample(self, subject: Subject, tmp_path: Path) -> Sample:
        if not subject.descriptor.sample:
            pytest.fail("the descriptor has no sample: write a function that makes one, and name it as 'package.module:name'")
        directory = tmp_path / "sample"
        directory.mkdir()
        return Sample(subject, subject.descriptor.load_sample()(directory))

    def test_no_size_is_believed(self, sample: Sample) -> None:
        """A failure means that a size, a number of records, or an offset that a file claims is believed: memory is taken, or
        time is spent, for what is not there, or anything else than MsgStoreError is raised. Large numbers are written over each
        place of the begin of each kind of file, of some of its records, and of its end."""
        with sample.opened() as source:
            messages = list(messages_of(source))
        alike: dict[str, list[Path]] = {}
        for path in sample.files():
            alike.setdefault(path.suffix, []).append(path)
        for file in (path for group in alike.values() for path in group[:3]):
            content, count = file.read_bytes(), max(_CLAIMS // len(alike), 16)
            records = [at for _, at, _ in sample.records(messages, file) if at]
            begins = [*records[:2], max(len(content) - count // 4, 0)]
            spots = {*range(count), *(begin + number for begin in begins for number in range(count // 4))}
            claims = [(at, at + len(claim), claim) for at in sorted(spots) for claim in CLAIMS if len(claim) < 8 or at % 4 == 0]
            claims += [(*number.span(), b"67108864") for number in list(re.finditer(rb"\d+", content))[:9]]
            for at, end, claim in claims:
                if end > len(content):
                    continue
                file.write_bytes(content[:at] + claim + content[end:])
                with within(), address_space(2**30):
                    _, peak = measured(sample.places)
                where = f"{file.name}, with {claim!r} at byte {at}"
                assert peak < 2**25 + 100 * len(content), f"{where}: reading takes {peak:,} bytes of memory"
            file.write_bytes(content)

    def test_time_is_linear(self, sample: Sample, tmp_path: Path) -> None:
        """A failure means that a long file takes hours, whole or damaged: the rest of it is copied, added up, or read again for
        each byte or each record. The begin of a record is followed by many zeros, other bytes, begins of records, or copies of
        the file; and the same after a record whose first bytes are wrong."""
        make = sample.subject.descriptor.load_sample()

        def prepared(count: int) -> Callable[[], object]:
            return Sample(sample.subject, make(Path(tempfile.mkdtemp(dir=tmp_path)), count)).places

        if len(inspect.signature(make).parameters) > 1:
            with within():
                is_same = is_linear(prepared, 1000)
            assert is_same, "with many messages in the sample, the time is not linear"
        whole = list(sample.batches())
        for file in {path.suffix: path for path in sample.files() if path.stat().st_size}.values():
            content, records = file.read_bytes(), sample.records(whole, file)
            _, begin, length = records[len(records) // 2] if records else ("", len(content) // 2, 16)
            head, wrong = content[begin : begin + min(length, 64)], bytes(byte ^ 0x55 for byte in content[begin : begin + 8])
            for kept in (content[:begin] + head[: length // 2], content[:begin] + wrong + content[begin + 8 :]):
                for filler in (b"\0", b"\xff" * 9 + b"\n", head, content):
                    read = partial(self._read_long, sample, file, kept, filler, content[begin:])
                    for size in (_LONG, 8 * _LONG):
                        started = time.process_time()
                        with within():
                            read(size)()
                            took = time.process_time() - started
                            is_same = took < size / _LONG / 10 or is_linear(read, size // 4)
                        where = f"{file.name}: with many times {filler[:40]!r} from {len(kept)} on"
                        assert is_same, f"{where}, the time is not linear"
                        if took > 0.05 or filler not in (head, content):  # the longer one is for what takes long for a record
                            break
            file.write_bytes(content)

    def test_a_long_file_is_read_whole(self, sample: Sample) -> None:
        """A failure means that messages are lost, or come twice, where one batch ends and the next begins. A record is appended
        again and again, if each of the first copies is a message."""
        whole = list(sample.batches())
        for name in sorted({name for batch in whole for name in batch.files}):
            file = sample.path / name
            content = file.read_bytes()
            length, begin = max((size, offset) for _, offset, size in sample.records(whole, file))
            record = content[begin : begin + length]
            numbers = [self._messages(sample, file, content + record * copies) for copies in range(4)]
            each = numbers[1] - numbers[0]
            if each > 0 and numbers == [numbers[0] + each * copies for copies in range(4)]:
                copies = min(_LONGEST // length + 1, _MOST // each)
                found = self._messages(sample, file, content + record * copies)
                expected = numbers[0] + each * copies
                assert found == expected, f"{file.name}, with a record {copies} times: {found} messages, not {expected}"
            file.write_bytes(content)

    def _messages(self, sample: Sample, file: Path, content: bytes) -> int:
        """Return the number of messages with this content of a file; 0 if it is refused."""
        file.write_bytes(content)
        try:
            with sample.opened() as source:
                return sum(map(len, messages_of(source)))
        except PluginError:
            raise
        except MsgStoreError:
            return 0

    def _read_long(self, sample: Sample, file: Path, kept: bytes, filler: bytes, end: bytes, size: int) -> Callable[[], object]:
        def read() -> None:
            file.write_bytes(kept + filler * max(size // len(filler), 1) + end)
            sample.places()

        return read

    def test_damage(self, sample: Sample, tmp_path: Path) -> None:
        """A failure means that damaged files stop everything, hang, give a body that was never there for a record that was, or
        are not where the damage says; that the begin of a record, which a cut has left, becomes a message; that a range of
        positions has other messages than the same positions of all, or one that ``count`` does not count; that a checksum that
        differs makes a message unverified; that a size is believed, and takes memory; or that a wrong byte costs all messages
        of a queue, or a cut the record that it goes through, and there is no error, no damage, and nothing more that is not
        read."""
        sound = _Sound.of(sample)
        queues = {batch.name: places_of(each for each in sound.whole if each.name == batch.name) for batch in sound.whole}
        for file in sample.files():
            content, records = file.read_bytes(), sample.records(sound.whole, file)
            spots = {number * len(content) // _CUTS for number in range(_CUTS)}
            spots |= {offset + number for number, (_, offset, size) in enumerate(records[:_CUTS]) if number < size}
            spots |= {offset + size // 2 for _, offset, size in records[:_CUTS:6]}
            spots |= verified_bodies(sound.whole, sample.path, file, content)
            for at, is_cut in product(sorted(spots) if content else (), (True, False)):
                file.write_bytes(content[:at] + (b"" if is_cut else bytes([content[at] ^ 0x55]) + content[at + 1 :]))
                where = f"{file.name}, {'cut at' if is_cut else 'wrong'} byte {at}"
                with within():
                    left, peak = measured(partial(sound.read_damaged, where, is_cut=is_cut))
                assert peak < 2**25 + 100 * len(content), f"{where}: reading takes {peak} bytes of memory"
                if left is None:
                    continue
                if is_cut:
                    cut = [(name, begin) for name, begin, size in records if 0 < at - begin < size <= 2 * (at - begin)]
                    gone = [begin for name, begin in cut if (name, begin) not in left]
                    assert not gone, f"{where}: the record at {gone[0]} is not there any more, and there is no damage"
                else:
                    lost = [str(name) for name, places in queues.items() if len(places) > 1 and not places & left]
                    assert not lost, f"{where}: {', '.join(lost)} has no message any more, and there is no damage"
            for at in range(0, len(content), len(content) // 6 + 1):  # several records are gone
                hole = min(len(content) // 4, 500)
                file.write_bytes((content[:at] + bytes(hole) + content[at + hole :])[: len(content)])
                with within():
                    sound.read_damaged(f"{file.name}, {hole} zeros at byte {at}")
            for more in (b"\0" * 9, b"\xff" * 9, b"n" * 99):
                file.write_bytes(content + more)
                where = f"{file.name}, with {more[:9]!r} at its end"
                left = sound.read_damaged(where)
                gone = [] if left is None else [at for name, at, _ in records if (name, at) not in left]
                assert not gone, f"{where}: the record at {gone[0]} is not there any more, and there is no damage"
            file.unlink()
            if file != sample.path:
                sample.places()
            file.write_bytes(content)

    def test_foreign_files_do_no_harm(self, sample: Sample, tmp_path: Path) -> None:
        """A failure means that something else in the directory of a source, such as a text, a pipe, or a link to nothing, stops
        everything with another error than MsgStoreError, hangs, or changes the messages without a word. Or that two files give
        queues of one name, as a copy of a file beside it may: one of them hides the other."""
        if sample.path.is_file():
            (tmp_path / "many").mkdir()
            sample = Sample(sample.subject, Path(shutil.copy(sample.path, tmp_path / "many")).parent)
            if sample.subject.descriptor.load_detect()(sample.path) is None:
                skip_without("a sample that is a directory, or such directories")
        sound, aside = _Sound.of(sample), tmp_path / "aside"
        makers: dict[str, Callable[[Path], object]] = {
            "README.txt": lambda path: path.write_text("Dear Sir or Madam,\n"), "empty": Path.touch, "directory": Path.mkdir,
            "link": lambda path: path.symlink_to("nothing"), "pipe": os.mkfifo, "\udcff.tmp": Path.touch, ".hidden": Path.touch,
        }  # fmt: skip
        directories = [sample.path, *(path for path in sorted(sample.path.rglob("*"))[:9] if path.is_dir())]
        beside: list[tuple[Path, str, Callable[[Path], object], Path | None]] = [
            (directory, name, make, None) for directory in directories for name, make in makers.items()
        ]
        for path in sample.files()[:9]:
            names = (f"copy-{path.name}", f"{path.stem}.copy{path.suffix}", f"copy/{path.name}",
                     f"{path.stem.swapcase()}{path.suffix}")  # fmt: skip
            beside += [(path.parent, name, partial(shutil.copy, path), path) for name in names]
        for directory, name, make, original in beside:
            path = directory / name
            if path.exists():  # the file system ignores the case of letters
                continue
            path.parent.mkdir(exist_ok=True)
            try:
                make(path)
            except OSError:  # not every file system has such files, or names
                continue
            where = f"beside {'a copy ' if original else ''}{name!r} in {directory.name}"
            with within():
                left, expected = sound.read_damaged(where), places_of(sound.whole)
                if original:
                    original.rename(aside)
                    expected |= sample.places()
                    aside.rename(original)
            missing = set() if left is None else expected - left
            assert not missing, f"{where}: {len(missing)} messages are missing"
            path.rmdir() if path.is_dir() else path.unlink()
            path.parent.rmdir() if path.parent != directory else None

    def test_a_file_that_cannot_be_read(self, sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure means that a file that cannot be read stops the queues in other files, or that nothing says so. The file is
        a pipe, or the disk has an error. A source that lets an error of ``SourceContext.read`` pass ends the command: yield
        damage of size 0 for the queue, or list it with ``read=False``."""
        whole = list(sample.batches())
        files = {batch.name: {file for each in whole if each.name == batch.name for file in each.files} for batch in whole}
        alone = {file for of_queue in files.values() for file in of_queue if any(file not in other for other in files.values())}
        if not alone:
            skip_without("a sample with two queues in files of their own")
        read_file, broken, aside = sources._read, Path(), tmp_path / "aside"

        def read(opened_files: Any, path: Path, name: str) -> Any:
            if path / name == broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(broken))
            return read_file(opened_files, path, name)

        monkeypatch.setattr(sources, "_read", read)
        for file in sorted(alone):
            others = places_of(batch for batch in whole if file not in files[batch.name])
            broken = sample.path / file
            self._reads(sample, others, f"with an error of the disk in {file}")
            broken.rename(aside)
            os.mkfifo(sample.path / file)
            broken = Path()
            self._reads(sample, others, f"with a pipe in place of {file}")
            aside.replace(sample.path / file)

    def _reads(self, sample: Sample, expected: set[Place], where: str) -> None:
        """Read all queues. Fails unless the messages at these places are among them."""
        try:
            with within(), sample.opened() as source:
                infos = list(source.queues())
                items = [item for info in infos if info.read for item in source.messages(info.name, 0, None)]
                damage = [*source.damage(), *(item for item in items if isinstance(item, SourceDamage))]
        except MsgStoreError as error:
            raise AssertionError(f"{where}, no queue is read: {error}") from error
        assert damage or not all(info.read for info in infos), f"{where}, there is no damage, and nothing that is not read"
        missing = expected - places_of(item for item in items if isinstance(item, MessageBatch))
        assert not missing, f"{where}, {len(missing)} messages of other queues are missing"


@attrs.frozen
class _Sound:
    """A sample, and what is read of it before it is damaged."""

    sample: Sample
    whole: list[MessageBatch]
    rows: dict[Place, dict[str, Any]]
    unread: int
    """Parts that are not read."""

    @classmethod
    def of(cls, sample: Sample) -> _Sound:
        whole = list(sample.batches())
        with sample.opened() as source:
            unread = sum(not info.read for info in source.queues())
        places = {(row["origin"]["file"], row["origin"]["offset"]): row for batch in whole for row in rows_of(batch)}
        sound = cls(sample, whole, places, unread)
        sound.read_damaged("the sample")
        return sound

    def read_damaged(self, where: str, *, is_cut: bool = False) -> set[Place] | None:
        """Return the places of all messages; None if something says that some are missing: an error, damage, or a part more
        that is not read."""
        try:
            with self.sample.opened() as source:
                infos = list(source.queues())
                found = list[MessageBatch | SourceDamage]()
                for name in (info.name for info in infos if info.read):
                    items = list(source.messages(name, 0, None))
                    all_rows = rows(items)
                    middle = all_rows[len(all_rows) // 2]["position"] if all_rows else 1
                    halves = rows([*source.messages(name, 0, middle), *source.messages(name, middle, None)])
                    check_rows(halves, all_rows, f"{where}: {name}, read up to {middle} and from there on")
                    if self.sample.subject.has(Capability.RANDOM_ACCESS):
                        count, last = source.count(name), max((row["position"] for row in all_rows), default=-1)
                        assert count > last, f"{where}: {name} has a message at position {last}, and count is {count}"
                    again = [item for item in source.messages(name, 0, None) if isinstance(item, SourceDamage)]
                    is_same = again == [item for item in items if isinstance(item, SourceDamage)]
                    assert is_same, f"{where}: {name}, read again, has other damage"
                    found += items
                apart = list(source.damage())
                list(source.queues())
                assert list(source.damage()) == apart, f"{where}: another call of queues changes the damage"
                damage = [item for item in found if isinstance(item, SourceDamage)] + apart
        except PluginError:
            raise
        except MsgStoreError:
            return None
        check_places([*found, *damage], self.sample.path, where)
        for batch in found:
            for row in rows_of(batch) if isinstance(batch, MessageBatch) else ():
                was = self.rows.get((row["origin"]["file"], row["origin"]["offset"]))
                if was is not None and was["sha256"] != row["sha256"]:
                    is_begin = is_cut and row["origin"]["size"] < was["origin"]["size"]
                    called = (
                        "verified" if row["verified"] else "that of a cut record" if is_begin else "given for a verified one"
                    )
                    assert damage or not (is_begin or row["verified"] or was["verified"]), f"{where}: another body is {called}"
        if damage or sum(not info.read for info in infos) > self.unread:
            return None
        return places_of(item for item in found if isinstance(item, MessageBatch))
