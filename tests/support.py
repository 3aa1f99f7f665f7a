"""What the tests that cross distributions share: cells and real directories."""

from __future__ import annotations

import collections
import contextlib
import errno
import faulthandler
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.builtin.plugin import LocalOptions
from msgstore.cli.main import main
from msgstore.contract import Combine, RecordError, StoredBody
from msgstore.files import Files
from msgstore.testing import stores
from msgstore.testing.faults import RecordingFiles, StoppingFiles, UnsyncedFiles, listing

DATA = Path(__file__).parent / "data"
DIRECTORIES = ["mixed_upgrade", "v1_clean", "v1_compacted", "v2_clean", "v2_compacted", "v2_dirty", "v2_dirty_torn"]


@contextlib.contextmanager
def one_at_a_time(make: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield ``make``, which first abandons what it has made before, as the end of a process does. So does the end."""
    last: list[Any] = []

    def abandon() -> None:
        while last:
            last.pop().abandon()

    def make_next(*arguments: Any, **options: Any) -> Any:
        abandon()
        last.append(make(*arguments, **options))
        return last[0]

    yield make_next
    abandon()


def slow(*values: object) -> Any:
    """Mark one case of a parametrized sweep as ``slow``. The fast suite keeps the cases that stand for the others."""
    return pytest.param(*values, marks=pytest.mark.slow)


@attrs.frozen
class Sample:
    """Every ``every``-th element of a series, from element ``first`` on."""

    every: int = 1
    first: int = 0

    def of(self, series: list[Any]) -> list[Any]:
        return series[self.first % self.every :: self.every]

    def has(self, number: int) -> bool:
        return number % self.every == self.first % self.every


WHOLE = Sample()


@attrs.frozen
class Cell:
    index: str
    format: str
    record: str = "message"

    @property
    def keys(self) -> dict[str, Any]:
        """Keywords of ``open_store``."""
        keys = {"index": self.index, "format": self.format, "record": self.record}
        if self.record == "audit":  # a stranger's: whoever configures the store chooses its byte
            keys["format"] = {"use": self.format, "records": {"audit": {"byte": 200, "actor": "tests"}}}
        return keys

    @property
    def header(self) -> int:
        """Bytes that a segment has beyond those of v1 and v2."""
        return 4096 if self.format == "ledger" else 0

    def __str__(self) -> str:
        return f"{self.index}-{self.format}" + ("" if self.record == "message" else f"-{self.record}")


CELLS = {
    str(cell): cell
    for cell in [Cell(i, f, r) for i in ("ets", "lmdb") for f, r in (("v1", "message"), ("v2", "message"), ("v2", "checksum"))]
}
ACME_CELLS = {str(cell): cell for cell in (Cell(index, "v2", "audit") for index in ("ets", "lmdb"))}
"""With the record type of examples/acme_audit_record."""
FOREIGN_CELLS = {
    str(cell): cell for cell in map(Cell, ("ets", "lmdb", "sqlite", "sqlite", "sqlite"), ("ledger",) * 3 + ("v1", "v2"))
}
"""With backends that speak to core through the contract only."""
needs_foreign = pytest.mark.skipif(
    None in map(find_spec, ("foreign_backends", "acme_sqlite_index")),
    reason="pip install -e ./tests/foreign -e ./examples/acme_sqlite_index",
)


class FullDisk(UnsyncedFiles):
    """A disk that has no room while ``full``."""

    full = False

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, data, offset)


class HookedFiles(RecordingFiles):
    """Records every operation, and calls functions of the test before or after some of them.

    ``files.before("pwrite", act, ".tmp")`` calls ``act()`` once, before the next write to a file whose name has ``.tmp`` in it;
    ``times=None`` does so each time. What ``act`` raises, the operation raises. A ``replace`` has two names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[list[Any]] = []

    def before(self, names: str, act: Callable[[], object], name: str = "", *, times: int | None = 1) -> None:
        """``names``: of operations, separated by spaces."""
        self.hooks.append([names.split(), act, name, times, False])

    def after(self, names: str, act: Callable[[], object], name: str = "", *, times: int | None = 1) -> None:
        self.hooks.append([names.split(), act, name, times, True])

    def _run(self, name: str, *args: Any) -> Any:
        paths = [arg for arg in args[:2] if isinstance(arg, Path)] or [Path(self._paths.get(args[0]) or "")]
        names = " ".join(path.name for path in paths)
        self._act(name, names, after=False)
        result = super()._run(name, *args)
        self._act(name, names, after=True)
        return result

    def _act(self, operation: str, name: str, *, after: bool) -> None:
        for hook in list(self.hooks):
            operations, act, part, times, is_after = hook
            if is_after == after and operation in operations and part in name and times != 0:
                hook[3] = None if times is None else times - 1
                act()


def open_with(path: Path, files: Files | None = None, **keys: Any) -> msgstore.Store:
    """``open_store`` with a file layer of the test's own."""
    return stores.open_with(path, catalogue(), files, **keys)


@contextlib.contextmanager
def opening(path: Path, cell: Cell, **usual: Any) -> Iterator[Callable[..., msgstore.Store]]:
    """``open_it(files=None, **keys)`` opens the store of ``path``, again and again; at the end all are abandoned."""
    stores: list[msgstore.Store] = []

    def open_it(files: Files | None = None, **keys: Any) -> msgstore.Store:
        stores.append(open_with(path, files, **cell.keys, **usual | keys))
        return stores[-1]

    try:
        yield open_it
    finally:
        for store in stores:
            store.abandon()


@functools.cache
def catalogue() -> msgstore.Catalogue:
    return msgstore.load_catalogue()


needs_erlang = pytest.mark.skipif("erlang" not in catalogue().names("body"), reason="pip install -e ./plugins/erlang_body")


@attrs.frozen
class RealDirectory:
    """A directory that a broker wrote, with the truth about it."""

    name: str
    manifest: dict[str, Any]

    @classmethod
    @functools.cache
    def load(cls, name: str) -> RealDirectory:
        return cls(name, json.loads((DATA / "msg-store" / name / "manifest.json").read_text()))

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(DATA / "msg-store" / self.name / "store", to / "store"))

    @property
    def torn_id(self) -> bytes | None:
        return bytes.fromhex(self.manifest["torn"]["id"]) if "torn" in self.manifest else None

    @property
    def refcounts(self) -> dict[bytes, int]:
        return {bytes.fromhex(m["id"]): m["refcount"] for m in self.manifest["messages"] if m["refcount"]}

    @property
    def live(self) -> dict[bytes, str]:
        """Id to SHA-256 of the stored body of every live, confirmed message; less the one that was torn on purpose."""
        return {
            bytes.fromhex(m["id"]): m["body_sha256"]
            for m in self.manifest["messages"]
            if m["refcount"] and m["confirmed"] and bytes.fromhex(m["id"]) != self.torn_id
        }


def id_of(number: int) -> bytes:
    """Return a message id; the numbers of ``A`` to ``D`` are none of a test that uses both."""
    return number.to_bytes(2, "big") * 8


LETTERS = dict(zip("ABCDEFGH", (bytes([number]) * 16 for number in range(1, 9)), strict=True))
A, B, C, D = list(LETTERS.values())[:4]


def play(store: msgstore.Store, steps: str, clients: Any = None, files: HookedFiles | None = None) -> None:
    """Play a history. ``1+A``: client 1 writes A, three times itself as its body; ``+A``: a client of its own does so; ``-AA``:
    remove A twice in one call; ``1x``: delete and close client 1; ``f``: flush; ``r``: roll. ``f{1-A}`` plays ``1-A`` in the
    flush, at its next write to ``files``. ``clients``: by their digit, or one client for all steps."""
    if isinstance(clients, msgstore.Client) or clients is None:
        alone = clients or store.client()
        clients = collections.defaultdict(lambda: alone)
    for step, inside in re.findall(r"(\S[^\s{}]*)(?:\{(.*?)\})?", steps):
        if step in "fr":
            if inside:
                assert files is not None
                files.before("pwrite", functools.partial(play, store, inside, clients))
            store.roll() if step == "r" else store.flush()
            continue
        number, action, letters = re.fullmatch(r"(\d?)([-+x])(\w*)", step).groups()  # type: ignore[union-attr]
        client, ids = clients[number], [LETTERS[letter] for letter in letters]
        if action == "x":
            client.delete_and_close()
        elif action == "-":
            client.remove(ids)
        else:
            for msg_id in ids:
                client.write(msg_id, msg_id * 3)


def counts(store: msgstore.Store) -> dict[bytes, int]:
    """Id to reference count, of every message on disk."""
    return {entry.msg_id: entry.references for entry in store.entries()}


def contents(store: msgstore.Store) -> dict[bytes, bytes]:
    """Id to body, of every message on disk."""
    with store.client() as client:
        return client.read_many([entry.msg_id for entry in store.entries()])


def collect(store: msgstore.Store, *actions: Any) -> list[Any]:
    """Collect by a policy that plans these actions."""
    policy: Any = type("Scripted", (), {"plan": lambda self, segments, now: list(actions)})()
    store._collector._policy, store._collector._may_drop = policy, True
    return store.compact()


def combinable(store: msgstore.Store) -> list[Combine]:
    """The action for the first two neighbours whose live records fit into one segment, or none."""
    sealed = [s for s in store.segments() if s.live_count and not s.current]
    fit = [a.header_bytes + a.live_bytes + b.live_bytes <= a.size_limit for a, b in pairwise(sealed)]
    return [Combine((a.number, b.number)) for a, b in compress(pairwise(sealed), fit)][:1]


TWENTY = [(bytes([n]) * 16, b"body") for n in range(20)]


def command(*arguments: object, code: int | None = 0, stdin: bytes | str | None = None, columns: int = 400) -> Result:
    """Run the command line in this process. Fails for a traceback or another exit code; None is any."""
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [str(argument) for argument in arguments], input=stdin)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert "Traceback" not in result.stderr
    assert code in (None, result.exit_code), result.output
    return result


def json_of(*arguments: object, code: int | None = 0) -> list[dict[str, Any]]:
    """Return the objects that a command with ``--json`` prints."""
    return [json.loads(line) for line in command(*arguments, "--json", code=code).stdout.splitlines()]


def run_job(job: Any, processes: int = 1) -> Any:
    """Run a job, such as ``InventoryJob``, in local processes. Return its report."""
    from msgstore.jobs.local import LocalRunner  # needs pyarrow for some jobs

    verb = type(job).__name__.removesuffix("Job").lower()
    return getattr(LocalRunner(LocalOptions(processes=processes)), verb)(job)


def filled(path: Path, messages: Iterable[tuple[bytes, bytes]] = TWENTY, **keys: Any) -> Path:
    """Write a store with these messages, and close it."""
    with open_with(path, **keys) as store:
        store.client().write_many(messages)
    return path


def records_in(found: Any) -> list[dict[str, Any]]:
    """Rows of all records of a ``SegmentInput``, record by record, by the methods that a store reads with."""
    from msgstore.jobs.inputs import open_input

    form, data, rows = open_input(found), Path(found.path).read_bytes(), []
    for msg_id, offset, size, kind in form.format.scan(data).records.rows():
        body = form.format.decode(msg_id, data[offset : offset + size])
        rows.append({
            "store": found.store, "file": Path(found.path).name, "format": found.format, "offset": offset, "size": size,
            "type": kind if form.typed else None, "id": msg_id, "body": body,
        })  # fmt: skip
    return rows


def records_of(*sources: Path) -> list[dict[str, Any]]:
    """The same, of all segments of these paths."""
    from msgstore.jobs.inputs import find_inputs

    return [row for found in find_inputs(catalogue(), sources).inputs for row in records_in(found)]


def json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def counts_file(path: Path, counts: Iterable[tuple[bytes, int]]) -> Path:
    """Write reference counts, or their changes, as lines."""
    path.write_text("".join(f"{msg_id.hex()},{count}\n" for msg_id, count in counts))
    return path


def stops(least: int = 5, *, torn: int = 0) -> Iterator[tuple[str, StoppingFiles]]:
    """Yield (name, files) that end the process at each change in turn, after ``torn`` bytes of a write, until files that the
    block does not use up. Fails if there are not more than ``least``."""
    for stop in range(1000):
        files = StoppingFiles(stop, torn)
        yield str(stop), files
        if not files.stopped:
            assert stop > least, "the block changes too little"
            return
    pytest.fail("there is always one more change")


@contextlib.contextmanager
def unchanged(directory: Path, *, but: Iterable[str] = ("lock.mdb",), traceless: bool = False) -> Iterator[None]:
    """Fail if the block changes bytes, times or names of files below a directory. ``but``: names of files that may change.
    ``traceless``: no file may come and go, either."""

    def state() -> dict[str, object]:
        found: dict[str, object] = {}
        for name, known in listing(directory).items():
            path = directory / name
            if path.is_file() and path.name not in but:
                found[name] = (known, path.read_bytes())
            elif path.is_dir():
                found[name] = known if traceless and not list(path.glob("lock.mdb")) else None
        return found

    before = state()
    yield
    assert state() == before, f"{directory} was changed"


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def failing(error: int = errno.EIO) -> Callable[..., Any]:
    """Return a replacement for an operation that raises OSError."""

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(error, os.strerror(error))

    return fail


def flip(path: Path, offset: int, bits: int = 0xFF, *, unseen: bool = False) -> bytes:
    """Change bits of one byte; ``unseen``: the file's times stay. Return the new content."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)
    if unseen:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return bytes(data)


def in_threads(*calls: Callable[[], object], seconds: float = 60) -> None:
    """Run all calls at once. Raise what the first failed one raises."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        try:
            barrier.wait(seconds)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[call], daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), f"a thread hangs; all threads are at\n{_stacks()}"
    if errors:
        raise errors[0]


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def hashes(store: msgstore.Store) -> dict[bytes, str]:
    """Id to SHA-256 of the stored body, of every message on disk."""
    return {entry.msg_id: hashlib.sha256(store.stored_body(entry)).hexdigest() for entry in store.entries()}


class Deflate:
    """A sound body codec, which detects damage."""

    def __init__(self, options):
        pass

    def encode(self, msg_id, body):
        return body if isinstance(body, StoredBody) else zlib.compress(body)

    def decode(self, msg_id, stored):
        try:
            return zlib.decompress(stored)
        except zlib.error as error:
            raise RecordError("not_deflated", str(error)) from None

    def is_valid(self, msg_id, stored):
        with contextlib.suppress(RecordError):
            return self.decode(msg_id, stored) is not None
        return False
