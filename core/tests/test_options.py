"""Sizes and times as people write them, and descriptors as plugins do."""

from __future__ import annotations

import re

import pytest

from msgstore.contract import Capability, SegmentFormatDescriptor
from msgstore.units import parse_duration, parse_size
from msgstore.contract.formats import RESERVED_EXTENSIONS


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


def described(**members):
    return SegmentFormatDescriptor(
        **{"name": "a", "contract": (2, 0), "factory": "a:b", "extension": ".a", "generation": 3} | members
    )


@pytest.mark.parametrize(
    "capabilities", [(Capability.SELF_DESCRIBING,), ["self-describing"], {"self-describing", Capability.SELF_DESCRIBING}]
)
def test_capabilities_may_be_given_by_their_names(capabilities):
    assert described(capabilities=capabilities).capabilities == {Capability.SELF_DESCRIBING}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"capabilities": "persistent"}, "'persistent' are not a collection; write capabilities=(Capability.PERSISTENT,)"),
        ({"capabilities": Capability.FRAMED}, "write capabilities=(Capability.FRAMED,)"),
        ({"capabilities": ("persistant",)}, "the capability 'persistant' is not one of persistent, live-reads"),
        ({"capabilities": (None,)}, "the capability None is not one of"),
        ({"extension": ".acme-fmt"}, "the extension '.acme-fmt' is not '.' with letters"),
        ({"extension": "acme_fmt"}, "the extension 'acme_fmt' is not"),
        ({"extension": "."}, "the extension '.' is not"),
        ({"extension": None}, "the extension None is not"),
        ({"extension": ""}, "the extension '' is not"),
        ({"extension": "./acme"}, "the extension './acme' is not"),
        ({"extension": ".sqs.acme"}, "the extension '.sqs.acme' is not"),
        *(
            ({"extension": e}, f"the extension '{e}' is that of other files of a store")
            for e in (*RESERVED_EXTENSIONS, ".TMP", ".Erase")
        ),
        ({"leftover_extensions": (".tmp",)}, "the extension '.tmp' is that of other files of a store"),
        ({"leftover_extensions": (".A",)}, "'.A' cannot be that of segments and of what is left over"),
        ({"generation": "3"}, "the generation '3' is not an integer"),
        ({"generation": True}, "the generation True is not an integer"),
        ({"leftover_extensions": ".old"}, "the leftover extensions '.old' are not a tuple"),
        ({"leftover_extensions": (".old", "new")}, "the extension 'new' is not"),
        ({"leftover_extensions": (".a",)}, "'.a' cannot be that of segments and of what is left over"),
    ],
)
def test_descriptors_that_could_never_work(members, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        described(**members)
