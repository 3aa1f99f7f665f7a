"""The version of the contract between core and its plugins.

Every descriptor states the version that its plugin was *written against*. Core accepts it when the major numbers are equal
and core's minor number is at least as high: a minor step only ever adds, a major step changes or takes away.
"""

from __future__ import annotations

CONTRACT_VERSION: tuple[int, int] = (2, 2)


def is_compatible(declared: tuple[int, int]) -> bool:
    """True if a plugin written against ``declared`` works with this core."""
    return declared[0] == CONTRACT_VERSION[0] and declared[1] <= CONTRACT_VERSION[1]
