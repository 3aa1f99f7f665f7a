"""Check of a store's table in a configuration: every key, and the backends that it names. Opens nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from msgstore.config import StoreConfig, store_config
from msgstore.contract import Capability, Descriptor, IndexDescriptor, MsgStoreError
from msgstore.directory import known_settings
from msgstore.engine.backends import resolve
from msgstore.engine.open.broker import check_codec
from msgstore.engine.opening import check_observers
from msgstore.files import Files
from msgstore.option_values import Backend, checks_of_keys, structure
from msgstore.plugins.catalogue import Catalogue

Check = tuple[str, Callable[[], object]]
"""A place in the configuration, and what raises its error."""


def check_store(table: Mapping[str, Any], where: str, base: Path, catalogue: Catalogue | None) -> list[str]:
    """Return each distinct error, prefixed with ``where``. Keys and backends are checked one by one, so that an error in one
    does not hide the others. Backends are checked if the keys are right."""
    tables = [{"path": ".", key: value} for key, value in table.items()]
    for keys in tables:
        if "record" in keys and "format" in table:
            keys["format"] = table["format"]  # the error about a record type names it
    tables += [] if "path" in table else [dict(table)]
    errors = errors_of((where, partial(store_config, keys, where, base)) for keys in tables)
    if not errors and catalogue:
        errors = errors_of(_backend_checks(store_config(table, where, base), catalogue))
    return errors


def _backend_checks(store: StoreConfig, catalogue: Catalogue) -> Iterator[Check]:
    remembered = None
    with contextlib.suppress(MsgStoreError, OSError):  # ``formats`` reports it
        if remembered := known_settings(Files(), store.path, warns=False):
            catalogue = attrs.evolve(catalogue, remembered=remembered.distributions)

    def formats() -> object:
        remembered = known_settings(Files(), store.path) if store.path.is_dir() else None
        return resolve(attrs.evolve(store, body=Backend("raw"), gc=Backend("half-empty")), catalogue, remembered)

    def made(key: str, backend: Backend, find: Callable[[str], Descriptor]) -> object:
        if key == "body" and remembered and not backend.named:  # an opening needs no options of it
            return find(remembered.body)
        descriptor = find(backend.name)
        given = structure(descriptor.options, backend.options, f"{store.where} {key}", backend.base)
        if not isinstance(descriptor, IndexDescriptor):
            return catalogue.make(descriptor, given)
        return catalogue.load_factory(descriptor)  # creating it would open the store

    at = f"{store.where} format"
    with contextlib.suppress(MsgStoreError):  # ``formats`` reports it
        form = catalogue.format(store.format.name)
        of_records = ("records",) if Capability.TYPED_RECORDS in form.capabilities else ()
        yield from checks_of_keys(form.options, store.format.options, at, store.format.base, of_records)
        records = store.format.options.get("records")
        for name, given in records.items() if isinstance(records, Mapping) else ():
            yield store.where, partial(catalogue.record, form.name, name)
            with contextlib.suppress(MsgStoreError):  # that check reports it
                if isinstance(given, Mapping):
                    options = catalogue.record(form.name, name).options
                    yield from checks_of_keys(options, given, f"{at} records {name}", store.format.base, ("byte",))
    yield store.where, formats
    if remembered and any(path.suffix in catalogue.formats_by_extension() for path in store.path.iterdir()):
        yield f"{store.where} body", partial(check_codec, store, remembered)
    yield f"{store.where} observers", partial(check_observers, store, catalogue)
    selected: list[tuple[str, Backend, Callable[[str], Descriptor]]] = [
        ("index", store.index, catalogue.index),
        ("body", store.body, catalogue.body_codec),
        ("gc", store.gc, catalogue.gc_policy),
    ]
    for key, backend, find in selected:
        at = f"{store.where} {key}"
        with contextlib.suppress(MsgStoreError):  # ``made`` reports it
            yield from checks_of_keys(find(backend.name).options, backend.options, at, backend.base)
        yield at, partial(made, key, backend, find)


def errors_of(checks: Iterable[Check]) -> list[str]:
    """Run (place, check) pairs. Return each distinct error, prefixed with its place. One that ends with the whole of another
    error is left out: that other one is its cause."""
    errors: dict[str, str] = {}
    for where, run in checks:
        try:
            run()
        except (MsgStoreError, OSError) as error:
            text = str(error)
            text = text if text.startswith(where) else f"{where}: {text.replace(f'{where} ', '')}"
            errors[text] = text.removeprefix(f"{where}: ")
    ends = errors.values()
    return [text for text, own in errors.items() if not any(len(end) < len(own) and own.endswith(end) for end in ends)]
