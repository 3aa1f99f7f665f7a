"""Blame: which plugin an exception comes from. Calls into plugins are too many, and too fast, to enclose each of them; the
traceback of an exception tells the same."""

from __future__ import annotations

import traceback

from msgstore.contract import BrokenPlugin, MsgStoreError
from msgstore.plugins.catalogue import load_catalogue
from msgstore.plugins.loader import comes_from_outside

PLUGIN_FAILED = "plugin failed"
"""In the reason for a segment that is unreadable or skipped because of a plugin. No fault of the segment."""


def blame(error: BaseException | None) -> BrokenPlugin | None:
    """Return the error that names the plugin whose code raised ``error``, and the method.

    None for what is no fault of a plugin: an exception of msgstore, of the operating system, from outside, or of other code.
    """
    if not isinstance(error, Exception | SystemExit) or isinstance(error, MsgStoreError | OSError | MemoryError):
        return None
    if comes_from_outside(error):
        return None
    catalogue = load_catalogue()
    factories = {
        found.descriptor.factory.partition(":")[0]: found.descriptor
        for found in catalogue.registrations
        if found.provider.distribution != "msgstore"
    }
    packages = {module.partition(".")[0]: descriptor for module, descriptor in factories.items()}
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__"))
        descriptor = factories.get(module) or packages.get(module.partition(".")[0])
        if descriptor is not None:
            return catalogue.broken(descriptor, f"failed in {frame.f_code.co_name}", error)
    return None
