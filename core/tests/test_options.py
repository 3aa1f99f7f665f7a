"""Sizes and times as people write them."""

from __future__ import annotations

import pytest

from msgstore.contract.options import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("16MiB", 16 * 2**20), ("4000000B", 4_000_000), ("1 GiB", 2**30), ("1.5kB", 1500), (0, 0), (17, 17)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "16", "16MIB", "-1B", "1.5B", "B", -1, 1.5, True, None, [1]])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1TiB", 2**40, "9" * 400 + "B", 10**400, "1000000 GB"])
def test_sizes_that_are_too_large(text):
    with pytest.raises(ValueError, match="too large: a size is less than 1 TiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["366d", 1e300, 10**400, "9" * 400 + "s"])
def test_times_that_are_too_long(text):
    with pytest.raises(ValueError, match="too large: a time is at most 365d") as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 150


def test_the_largest_that_are_taken():
    assert parse_size(2**40 - 1) == 2**40 - 1
    assert parse_duration("365d") == parse_duration(365 * 86400) == 365 * 86400


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("1.5s", 1.5), ("2min", 120), ("1h", 3600), (3, 3.0), (0.5, 0.5)]
)
def test_times(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "-1s", -1, True, None, float("inf"), float("nan")])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="not a time"):
        parse_duration(text)
