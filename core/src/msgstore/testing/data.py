"""What the kit's tests are given: ids, bodies, batches, and how many of them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Batch = list[tuple[bytes, bytes]]
"""(id, body) of each message; ids differ."""

_TOLD_APART = (
    HealthCheck.function_scoped_fixture,  # a subject is a value
    HealthCheck.differing_executors,  # tests are inherited
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)


def tried(examples: int) -> settings:
    """The same examples in each run: what passes today does not fail tomorrow, for the same backend."""
    return settings(max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=_TOLD_APART)


ids = st.binary(min_size=16, max_size=16)
bodies = st.one_of(
    st.binary(max_size=80),
    st.integers(0, 700).map(bytes),
    st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(0, 60)),
)
"""Short ones of any bytes, and runs of one byte, zeros above all, that cross a sector of a disk."""
texts = st.text("abcdefgh", max_size=60).map(str.encode)
"""Bodies that no format takes for anything else."""


def batches(of: st.SearchStrategy[bytes] = bodies, *, least: int = 0, most: int = 12) -> st.SearchStrategy[Batch]:
    return st.lists(st.tuples(ids, of), min_size=least, max_size=most, unique_by=lambda message: message[0])


def numbered(count: int, body: bytes = b"") -> Batch:
    """The same messages each time: ids whose bytes are all spread over, one body."""
    return [((0x9E3779B97F4A7C15F39CC0605CEDC835 * (n + 1) % 2**128).to_bytes(16), body) for n in range(count)]
