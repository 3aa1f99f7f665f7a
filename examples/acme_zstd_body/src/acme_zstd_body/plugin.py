"""Registration of the body codec ``zstd``. ``zstandard`` is imported when a store selects the codec."""

from __future__ import annotations

import attrs

from msgstore import hookimpl
from msgstore.contract import BodyCodecDescriptor, Size


def _check_level(_: object, __: object, value: int) -> None:
    if not 1 <= value <= 22:
        raise ValueError(f"level: {value} is not from 1 (fast) to 22 (small)")


@attrs.frozen
class ZstdOptions:
    """Keys of the configuration in addition to ``use``."""

    level: int = attrs.field(default=3, validator=_check_level)
    max_body: Size = Size(128 * 2**20)
    """Maximum size of a body in bytes, for writing and reading. Limits the memory that a damaged or hostile body can use."""


@hookimpl
def msgstore_body_codecs() -> list[BodyCodecDescriptor]:
    return [
        BodyCodecDescriptor(
            name="zstd",
            contract=(1, 0),
            factory="acme_zstd_body.codec:ZstdBody",
            options=ZstdOptions,
            summary="Zstandard frames with a checksum",
            # Options with which the conformance kit tests the codec.
            examples=({}, {"level": 19}),
        )
    ]
