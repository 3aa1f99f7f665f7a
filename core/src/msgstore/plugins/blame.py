"""Blame: find the plugin that raised an exception, by its traceback. To enclose each call of a plugin would cost time at each
message."""

from __future__ import annotations

import sys
import sysconfig
import traceback

import attrs

from msgstore.contract import BrokenPlugin, Descriptor, MsgStoreError, RecordTypeDescriptor
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.descriptor_checks import CONTRACT_METHODS
from msgstore.plugins.frames import nearest, package_of
from msgstore.plugins.loader import comes_from_outside, find_entry_points, load

PLUGIN_FAILED = "plugin failed"
"""In the reason for a segment that is unreadable or skipped because of a plugin. No fault of the segment."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def blame(error: BaseException | None) -> BrokenPlugin | None:
    """Return the error that names the plugin whose code raised ``error``, and the method that msgstore had called.

    None for what is no fault of a plugin: an exception of msgstore, of the operating system, from outside, or of other code,
    such as a callback of the application. Imports no plugin that is not in use.
    """
    if not isinstance(error, Exception | SystemExit) or isinstance(error, MsgStoreError | OSError | MemoryError):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = next((at + 1 for at in range(len(frames) - 1, -1, -1) if package_of(frames[at]) == "msgstore"), None)
    if called is None or called == len(frames) or comes_from_outside(error):
        return None
    called = next((at for at in range(called, len(frames)) if package_of(frames[at]) not in sys.stdlib_module_names), called)
    method, last = frames[called], frames[-1]
    name = method.f_code.co_name
    if not (name in CONTRACT_METHODS or name.startswith("_")):
        return None
    loaded = load(item for item in find_entry_points() if item[1].module in sys.modules)
    catalogue = Catalogue(**attrs.asdict(loaded, recurse=False))
    descriptor, types = nearest(catalogue.descriptors(Descriptor), [method]), catalogue.descriptors(RecordTypeDescriptor)
    # A signal handler that is not installed any more, or another thread, may have raised it in a method of a plugin.
    if package_of(last) != package_of(method) and not (
        last.f_code.co_filename.startswith(_LIBRARIES) or nearest(types, [last])
    ):
        return None
    return None if descriptor is None else catalogue.broken(descriptor, f"failed in {name}", error, types)
