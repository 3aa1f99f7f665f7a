"""Backends with one injected fault each, to test that the conformance kit finds it.

``python -m mutants``, in ``tests/``, runs the kit against each and prints which tests caught it. A mutant is a subclass of a
real backend. A table has its name and what is wrong, and below it what the class changes::

    decode-ignores-the-id: a read does not look at the id
        decode: if found != msg_id: => if False:        another text in the source of the method
        encode > (_[0], _[1][:-1])                      another result: ``_`` is the right one, ``old`` the right method
        max_body = 7                                    another attribute

Expressions know the arguments of the method, and the names of its module and of the table's.
"""

from __future__ import annotations
import __future__

import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from msgstore.contract import Descriptor
from msgstore.testing.subjects import kind_of


@attrs.frozen
class Mutant:
    kind: str
    """As a configuration's key: format, record, index, gc or body."""
    name: str
    fault: str
    """What is wrong with it."""
    descriptor: Descriptor
    original: Descriptor
    """The descriptor of the backend without the fault; the kit must pass it."""
    options: Mapping[str, object]


MUTANTS: list[Mutant] = []


def add_mutants(
    original: Descriptor, base: type, table: str, *, options: Mapping[str, object] | None = None, **faulty: Any
) -> None:
    """Add the mutants of a table, for ``base``. ``faulty``: what their descriptors say otherwise. Called by a module."""
    module: str = inspect.currentframe().f_back.f_globals["__name__"]  # type: ignore[union-attr]
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, *changes = entry.splitlines()
        name, fault = head.split(": ", 1)
        cls = type(name.title().replace("-", ""), (base,), {"__module__": module})
        for change in changes:
            member, sign, new = re.fullmatch(r" +(\w+)(:| >| =) (.*)", change).groups()  # type: ignore[union-attr]
            how: Callable[..., Any] = {":": _edited, " >": _with_result, " =": _evaluated}[sign]
            setattr(cls, member, how(getattr(cls, member, None), new, module, base))
        setattr(sys.modules[module], cls.__name__, cls)
        descriptor = attrs.evolve(original, name=name, factory=f"{module}:{cls.__name__}", **faulty)
        MUTANTS.append(Mutant(kind_of(original), name, fault, descriptor, original, options or {}))


def _names(module: str, base: type) -> dict[str, Any]:
    return {**vars(sys.modules[base.__module__]), **vars(sys.modules[module])}


def _evaluated(_: object, new: str, module: str, base: type) -> Any:
    return eval(new, _names(module, base))


def _edited(method: Any, change: str, module: str, base: type) -> Any:
    """The method with another text in its source, which must stand there once."""
    old, new = change.split(" => ")
    source = getattr(method, "source", None) or textwrap.dedent(inspect.getsource(method))
    assert source.count(old) == 1, f"{method.__qualname__} has {source.count(old)} times {old!r}"
    names = _names(module, base)
    exec(compile(source.replace(old, new), module, "exec", __future__.annotations.compiler_flag), names)
    names[method.__name__].source = source.replace(old, new)
    return names[method.__name__]


def _with_result(method: Any, expression: str, module: str, base: type) -> Any:
    code, signature = compile(expression, module, "eval"), inspect.signature(method)

    @functools.wraps(method)
    def changed(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        right = method(*args, **kwargs)
        return eval(code, {**_names(module, base), **given.arguments, "_": right, "old": functools.partial(method, args[0])})

    return changed
