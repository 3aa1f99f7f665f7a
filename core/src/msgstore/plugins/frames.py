"""Frames of a traceback: those of a plugin's own code."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

from msgstore.contract import Descriptor

D = TypeVar("D", bound=Descriptor)


def place_of(descriptor: Descriptor, error: BaseException) -> str:
    """Return file and line of the innermost frame in a plugin's own package, for its author; "" if there is none."""
    package = package_of_factory(descriptor)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if package_of(frame) == package != "msgstore":
            return f" ({Path(frame.f_code.co_filename).name}:{line})"
    return ""


def package_of_factory(descriptor: Descriptor) -> str:
    """Return the package of a backend's factory."""
    return re.split("[.:]", descriptor.factory)[0]


def package_of(frame: FrameType) -> str:
    """Return the package whose code a frame runs."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def nearest(found: Iterable[D], frames: Sequence[FrameType]) -> D | None:
    """Return the descriptor whose factory is nearest to the code of ``frames``; None if none is of their packages."""
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    classes = [f"{module}:{type(frame.f_locals.get('self')).__name__}" for module, frame in zip(modules, frames, strict=True)]
    found = [one for one in found if package_of_factory(one) in map(package_of, frames)]
    return max(found, key=lambda one: (one.factory in classes, one.factory.partition(":")[0] in modules), default=None)
