"""One HTML page with a whole node: virtual hosts, queues, segments, damage. It has no script, and loads nothing."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import attrs

from msgstore.contract import QueueName
from msgstore_rabbitmq_source.check import NodeCheck, QueueCheck, in_words
from msgstore_rabbitmq_source.layout import VhostFiles
from msgstore_rabbitmq_source.naming import text
from msgstore_rabbitmq_source.source import RabbitmqSource

_STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --text: #1c2228; --faint: #5d6771; --line: #dcdeda; --bad: #b3261e;
  --live: #0f6db3; --orphan: #f2ab45; --other: #c3c9cf; }
@media (prefers-color-scheme: dark) { :root { --back: #13171b; --text: #e8ebee; --faint: #9ca7b1; --line: #333b44;
  --bad: #ff8a7a; --live: #4fa9ee; --orphan: #c9851f; --other: #4a545e; } }
body { margin: 0 auto; max-width: 1200px; padding: 18px 22px 60px; background: var(--back); color: var(--text);
  font: 14px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin-top: 30px; border-top: 1px solid var(--line); padding-top: 14px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; margin: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
caption { text-align: left; font-weight: 600; padding: 10px 0 4px; }
td, th { padding: 3px 16px 3px 0; text-align: left; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 400; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bad { color: var(--bad); font-weight: 600; } svg { display: block; height: 14px; min-width: 2px; }
.live { fill: var(--live); } .orphan { fill: var(--orphan); } .other { fill: var(--other); }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 6px 0 18px; vertical-align: -1px; }
"""
_BAR = 400
"""Width of the bar of the largest segment, in pixels."""


@attrs.frozen
class SegmentUse:
    """Bytes of a segment of a shared store."""

    file: str
    size: int
    live: int
    orphan: int

    @property
    def other(self) -> int:
        """Bytes in no record."""
        return max(self.size - self.live - self.orphan, 0)


def segment_uses(source: RabbitmqSource, vhost: VhostFiles) -> list[SegmentUse]:
    """Return how much of each segment is in queues."""
    live, orphan = Counter[str](), Counter[str]()
    referenced = set(source.node.references(vhost, transient=True))
    store = source.node.store(vhost)
    for msg_id, place in store.all_places():
        (live if msg_id in referenced else orphan)[place.file] += place.size
    files = store.files
    return [SegmentUse(file, source.node.files.files[file].size, live[file], orphan[file]) for file in files]


def page_of(source: RabbitmqSource, check: NodeCheck) -> str:
    """Return the page."""
    title = f"RabbitMQ node {check.node or Path(check.path).name}"
    parts = ["<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
             "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
             '<meta name="viewport" content="width=device-width, initial-scale=1">',
             f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><h1>{_text(title)}</h1>",
             "<pre>", *map(_line, in_words(check)), "</pre>"]  # fmt: skip
    vhosts = {directory: None if name is None else text(name) for directory, name in source.node.vhost_names.items()}
    for directory, name in sorted(vhosts.items(), key=lambda item: item[1] or ""):
        parts.append(f"<h2>{_text('Virtual host ' + name if name else 'Without a virtual host')}</h2>")
        parts.append(_queues([one for one in check.per_queue if one.info.name.vhost == name]))
        parts.append(_segments(segment_uses(source, source.node.files.vhosts[directory])))
    parts.append(_damage(check))
    return "\n".join([*parts, "</body></html>\n"])


def _line(line: str) -> str:
    """Return a line of the summary: one that is not indented is a heading."""
    return _text(line) if line.startswith(" ") else f"<b>{_text(line)}</b>"


def _text(value: object) -> str:
    """Return a value as text of a page. Control characters, which a name may have, are escaped."""
    printable = (char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in str(value))
    return html.escape("".join(printable))


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """Return a table. A cell is its class and its content, which is HTML."""
    rows = list(rows)
    body = "".join("<tr>" + "".join(f'<td class="{kind}">{content}</td>' for kind, content in row) + "</tr>" for row in rows)
    if not body:
        return ""
    kinds = [kind.removesuffix(" bad") for kind, _ in rows[0]]
    heads = "".join(f'<th class="{kind}">{_text(heading)}</th>' for kind, heading in zip(kinds, headings, strict=True))
    return f'<div class="wide"><table><caption>{_text(caption)}</caption><tr>{heads}</tr>{body}</table></div>'


def _number(value: int, kind: str = "number") -> tuple[str, str]:
    return kind, f"{value:,}"


def _queues(queues: Sequence[QueueCheck]) -> str:
    def rows() -> Iterator[list[tuple[str, str]]]:
        for one in queues:
            details = one.info.details
            yield [
                ("", _text(_queue(one.info.name))),
                ("", _text(details.get("index", ""))),
                _number(one.states["ready"] + one.states["expired"]),
                _number(one.bytes),
                _number(int(str(details.get("embedded", 0)))),
                _number(int(str(details.get("shared", 0)))),
                _number(one.lost, "number bad" if one.lost else "number"),
                ("", "may have been consumed" if one.unsure else "certain"),
                ("", _text(", ".join(f"{count:,} {state}" for state, count in sorted(one.states.items()) if state != "ready"))),
            ]

    headings = ("queue", "index", "messages", "bytes", "embedded", "shared", "lost", "certainty", "other states")
    return _table("Queues", headings, rows())


def _queue(name: QueueName) -> str:
    return name.queue if name.queue is not None else "in no queue"


def _segments(uses: Sequence[SegmentUse]) -> str:
    largest = max((one.size for one in uses), default=0)

    def rows() -> Iterator[list[tuple[str, str]]]:
        for one in uses:
            if one.size:
                yield [
                    ("", _text(PurePosixPath(one.file).name)), _number(one.size), ("", _bar(one, largest)),
                    _number(one.live), _number(one.orphan), _number(one.other),
                ]  # fmt: skip

    found = _table("Segments of the message stores", ("segment", "bytes", "", "in queues", "in no queue", "other"), rows())
    keys = (("live", "in queues"), ("orphan", "in no queue"), ("other", "in no record"))
    legend = "".join(f'<span class="key" style="background: var(--{kind})"></span>{what}' for kind, what in keys)
    return found and f"{found}<p>{legend}</p>"


def _bar(use: SegmentUse, largest: int) -> str:
    width, at, parts = _BAR * use.size / largest, 0.0, []
    for kind, size in (("live", use.live), ("orphan", use.orphan), ("other", use.other)):
        part = width * size / use.size
        parts.append(f'<rect class="{kind}" x="{at:.1f}" width="{part:.1f}" height="14"/>')
        at += part
    return f'<svg width="{width:.1f}" height="14" role="img" aria-label="{use.live:,} bytes in queues">{"".join(parts)}</svg>'


def _damage(check: NodeCheck) -> str:
    rows = (
        [
            ("", _text(span.file)), _number(span.offset), _number(span.size), ("bad", _text(span.reason)),
            ("", _text(span.name or "")), _number(span.messages),
        ]
        for span in check.damage
    )  # fmt: skip
    found = _table("Damage", ("file", "offset", "bytes", "what", "queue", "messages"), rows)
    return f"<h2>Damage</h2>{found}" if found else ""
