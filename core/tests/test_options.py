"""Sizes and times as people write them, and descriptors as plugins do."""

from __future__ import annotations

import re

import attrs
import pytest

from msgstore.contract import Capability, SegmentFormatDescriptor, SinkDescriptor
from msgstore.plugins.descriptor_checks import RESERVED_EXTENSIONS, check_descriptor
from msgstore.units import parse_duration, parse_size

CENTURY = 36_500 * 86400


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((parse_size, text, size) for text, size in (
            ("16MiB", 16 * 2**20), ("4000000B", 4_000_000), ("1 GiB", 2**30), ("1.5kB", 1500), (0, 0), ("0", 0), (17, 17),
            (2**40 - 1, 2**40 - 1))),
        *((parse_duration, text, seconds) for text, seconds in (
            ("200ms", 0.2), ("1.5s", 1.5), ("2min", 120), ("1h", 3600), ("0", 0), (3, 3.0), (0.5, 0.5), ("36500d", CENTURY),
            (CENTURY, CENTURY))),
    ],
)  # fmt: skip
def test_text_with_unit_is_parsed(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        *((parse_size, text, "not a size") for text in ("", "16", "16MIB", "-1B", "1.5B", "B", -1, 1.5, True, None, [1])),
        *((parse_size, text, "too large: a size is less than 1 TiB")
          for text in ("1TiB", 2**40, "9" * 400 + "B", 10**400, "1000000 GB")),
        *((parse_duration, text, "not a time")
          for text in ("", "5", "5 minutes", "-1s", -1, True, None, float("inf"), float("nan"))),
        *((parse_duration, text, "too large: a time is at most 36500d")
          for text in ("36501d", 1e300, 10**400, "9" * 400 + "s")),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_wrong_text_is_refused_briefly(parse, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert len(str(caught.value)) < 150


def described(**members):
    return SegmentFormatDescriptor(
        **{"name": "a", "contract": (2, 0), "factory": "a:b", "extension": ".a", "generation": 3} | members
    )


@pytest.mark.parametrize(
    "capabilities", [(Capability.SELF_DESCRIBING,), ["self-describing"], {"self-describing", Capability.SELF_DESCRIBING}]
)
def test_capabilities_given_by_name_are_converted(capabilities):
    assert described(capabilities=capabilities).capabilities == {Capability.SELF_DESCRIBING}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"capabilities": "persistent"}, "'p' is not a valid Capability"),
        ({"capabilities": Capability.FRAMED}, "'Capability' object is not iterable"),
        ({"options": int}, "are not an attrs class"),
        ({"contract": (1, 0, 0)}, "is not a pair of numbers"),
        ({"contract": "1.0"}, "is not a pair of numbers"),
        ({"examples": ()}, "are not sets of options"),
        ({"examples": ("max_age",)}, "are not sets of options"),
        ({"capabilities": ("persistant",)}, "'persistant' is not a valid Capability"),
        ({"capabilities": (None,)}, "None is not a valid Capability"),
        ({"extension": ".acme-fmt"}, "the extension '.acme-fmt' is not '.' followed by letters"),
        ({"extension": "acme_fmt"}, "the extension 'acme_fmt' is not"),
        ({"extension": "."}, "the extension '.' is not"),
        ({"extension": None}, "the extension None is not"),
        ({"extension": ""}, "the extension '' is not"),
        ({"extension": "./acme"}, "the extension './acme' is not"),
        ({"extension": ".sqs.acme"}, "the extension '.sqs.acme' is not"),
        *(
            ({"extension": e}, f"the extension '{e}' is used by other files of a store; choose another one")
            for e in (*RESERVED_EXTENSIONS, ".TMP", ".Erase")
        ),
        ({"leftover_extensions": (".tmp",)}, "the extension '.tmp' is used by other files of a store; choose another one"),
        ({"leftover_extensions": (".A",)}, "the extension '.A' cannot be used for both segments and leftovers"),
        ({"generation": "3"}, "'generation' must be <class 'int'>"),
        ({"leftover_extensions": ".old"}, "'leftover_extensions' must be <class 'tuple'>"),
        ({"leftover_extensions": (".old", "new")}, "the extension 'new' is not"),
        ({"leftover_extensions": (".a",)}, "the extension '.a' cannot be used for both segments and leftovers"),
        ({"capabilities": [Capability.PERSISTENT]}, "a SegmentFormatDescriptor cannot claim the capability PERSISTENT"),
        ({"capabilities": [Capability.COMPACTABLE]}, "a format with the capability COMPACTABLE claims SELF_DESCRIBING, too"),
        ({"options": attrs.make_class("Options", ["checks"])}, "the option 'checks' has no default: segments are also read"),
    ],
)
def test_impossible_descriptor_is_refused(members, reason):
    with pytest.raises((ValueError, TypeError), match=re.escape(reason)):
        check_descriptor(described(**members))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"endings": ".mpk"}, "the endings '.mpk' are not a tuple of text, such as ('one',)"),
        ({"endings": (3,)}, "the endings (3,) are not a tuple of text"),
        ({"endings": (".mpk", "mpk")}, "the ending 'mpk' does not begin with '.', such as '.acme'"),
        ({"endings": (".",)}, "the ending '.' does not"),
        ({"endings": ("",)}, "the ending '' does not"),
        ({"schemes": "amqp"}, "the schemes 'amqp' are not a tuple of text"),
        ({"changeable": "rate"}, "the changeable 'rate' are not a tuple of text"),
    ],
)
def test_impossible_sink_is_refused(members, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_descriptor(SinkDescriptor(name="a", contract=(1, 0), factory="a:b", **members))
