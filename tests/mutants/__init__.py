"""Backends with one injected fault each, to test that the conformance kit finds it.

``python -m mutants``, in ``tests/``, runs the kit against each and prints which tests caught it; ``--record`` notes it, and a
later run begins with that test. A mutant is a subclass of a real backend. A table has its name and what is wrong, and below
it what the class changes::

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
from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs

from msgstore.contract import Descriptor


class Mutant(NamedTuple):
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
    module = sys.modules[sys._getframe(1).f_globals["__name__"]]
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, *changes = entry.splitlines()
        name, fault = head.split(": ", 1)
        cls = type(name.title().replace("-", ""), (base,), {"__module__": module.__name__})
        for change in changes:
            member, sign, new = re.fullmatch(r" +(\w+)(:| >| =) (.*)", change).groups()  # type: ignore[union-attr]
            names = {**vars(sys.modules[base.__module__]), **vars(module)}
            setattr(cls, member, _changed(getattr(cls, member, None), sign.strip(), new, names))
        setattr(module, cls.__name__, cls)
        descriptor = attrs.evolve(original, name=name, factory=f"{module.__name__}:{cls.__name__}", **faulty)
        MUTANTS.append(Mutant(name, fault, descriptor, original, options or {}))


def _changed(method: Any, sign: str, new: str, names: dict[str, Any]) -> Any:
    if sign == "=":
        return eval(new, names)
    if sign == ":":
        old, new = new.split(" => ")
        source = getattr(method, "source", None) or textwrap.dedent(inspect.getsource(method))
        assert source.count(old) == 1, f"{method.__qualname__} has {source.count(old)} times {old!r}"
        source = source.replace(old, new)
        exec(compile(source, names["__name__"], "exec", __future__.annotations.compiler_flag), names)
        names[method.__name__].source = source
        return names[method.__name__]
    code, signature = compile(new, names["__name__"], "eval"), inspect.signature(method)

    @functools.wraps(method)
    def changed(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        right = method(*args, **kwargs)
        return eval(code, {**names, **given.arguments, "_": right, "old": functools.partial(method, args[0])})

    return changed
