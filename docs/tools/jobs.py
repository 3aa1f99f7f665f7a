"""Reference of jobs over many segments: the public interface of ``msgstore.jobs`` and of ``msgstore_spark``.

The source of the pipeline is parsed, not imported, so that Spark need not be installed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

import msgstore
from msgstore.jobs.reconcile import CLASSES
from source import (
    attribute_docs,
    call_section,
    cell,
    documentation,
    fields,
    format_signature,
    markdown,
    methods,
    table,
    type_text,
)

PIPELINE = Path(__file__).parents[2] / "pipeline"

CALLED = {
    "inputs": ("find_inputs", "open_input", "SegmentInput", "JobInputs"),
    "salvage": ("plan_salvage",),
    "inventory": ("plan_inventory",),
    "reconcile": ("plan_reconcile",),
    "diff": ("plan_diff",),
    "messages.sources": ("source_spec", "open_source", "SourceSpec"),
    "messages.selection": ("select", "selected_messages", "Selection"),
    "messages.conversion_plan": ("plan_convert", "ConvertJob"),
    "messages.conversion_report": ("ConvertReport", "QueueCounts"),
    "runner": ("choose_runner", "make_runner", "JobRunner"),
}
"""Names for programs that run a job, by module of ``msgstore.jobs``."""
WRITING = {
    "output.commit": ("StoreStaging",),
    "output.staging_directory": ("StagingDirectory",),
    "output.parts": ("StoreSpec", "PartWriter", "StorePart"),
}
"""Names for programs that write a new store in parallel, by module of ``msgstore.jobs``."""


def _sections(chosen: dict[str, tuple[str, ...]]) -> str:
    parts = []
    for module, names in chosen.items():
        for name in names:
            thing = getattr(importlib.import_module(f"msgstore.jobs.{module}"), name)
            where = f"### `{name}`\n\nIn `msgstore.jobs.{module}`."
            if inspect.isclass(thing):
                parts.append(f"{where} {_class(thing)}")
            else:
                parts.append(call_section(thing, name, "###").replace(f"### `{name}`", where, 1))
    return "\n\n".join(parts)


def _class(kind: type) -> str:
    parts = [documentation(kind, kind.__name__)]
    if attrs.has(kind):
        docs = attribute_docs(kind)
        rows = [
            (f"`{one.name}`", f"`{type_text(one.type)}`".replace("|", "\\|"), cell(docs.get(one.name, "")))
            for one in attrs.fields(kind)
        ]
        parts.append(table(("member", "type", ""), rows))
    parts += [call_section(call, f"{kind.__name__}.{name}", "####") for name, call in _methods(kind)]
    return "\n\n".join(parts)


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield class methods, which are constructors, and then methods."""
    for name, value in kind.__dict__.items():
        if isinstance(value, classmethod) and not name.startswith("_"):
            yield name, getattr(kind, name)
    yield from methods(kind)


def runners() -> str:
    found = {
        entry.descriptor.name: entry.descriptor for entry in msgstore.load_catalogue().registrations if entry.kind == "runner"
    }
    local = found["local"]
    rows = [("`local`", "`msgstore`", _options(local.options), cell(local.summary))]
    options = _tree("plugin")
    documented = _documented(next(node for node in options.body if isinstance(node, ast.ClassDef)))
    project = tomllib.loads((PIPELINE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    descriptor = next(
        node
        for node in ast.walk(_tree("plugin"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "JobRunnerDescriptor"
    )
    named = {word.arg: word.value for word in descriptor.keywords}
    option_text = "; ".join(f"`{name}`: {cell(doc)}" for name, doc in documented.items())
    name, summary = (str(ast.literal_eval(named[key])) for key in ("name", "summary"))
    rows.append((f"`{name}`", f"`{project['name']}`", option_text, cell(summary)))
    return table(("runner", "distribution", "options", ""), rows)


def _options(kind: type) -> str:
    return "; ".join(f"`{one.name}`: {one.doc}" for one in fields(kind))


def classes() -> str:
    return table(("class", ""), [(f"`{name}`", cell(text)) for name, text in CLASSES.items()])


# -- msgstore_spark -----------------------------------------------------------------------------------------------------------


def _tree(module: str) -> ast.Module:
    return ast.parse((PIPELINE / "src" / "msgstore_spark" / f"{module}.py").read_text(encoding="utf-8"))


def _documented(node: ast.ClassDef) -> dict[str, str]:
    """Return the docstrings of the attributes of a class: strings that follow an attribute."""
    found = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        value = following.value if isinstance(following, ast.Expr) else None
        if isinstance(statement, ast.AnnAssign) and isinstance(value, ast.Constant):
            found[ast.unparse(statement.target)] = inspect.cleandoc(str(value.value))
    return found


def _literal(module: str, name: str) -> dict[str, str]:
    for node in _tree(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if target is not None and ast.unparse(target) == name:
            value: dict[str, str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]  # an assignment has one
            return value
    raise LookupError(f"msgstore_spark.{module} has no {name}")


def _public() -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    for name, module in _literal("__init__", "_MODULES").items():
        for node in _tree(module.removeprefix("msgstore_spark.")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                yield name, node


def spark_functions() -> str:
    parts = []
    for name, node in _public():
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            returns = ast.unparse(node.returns) if node.returns else "None"
            signature = format_signature(name, _parameters(node.args), returns)
            parts.append(f"### `{name}`\n\n```text\n{signature}\n```\n\n{markdown(docstring)}")
    return "\n\n".join(parts)


def _parameters(arguments: ast.arguments) -> list[str]:
    """Return each parameter as in the source."""
    found = [ast.unparse(one) for one in arguments.args]
    for number, default in enumerate(reversed(arguments.defaults), 1):
        found[-number] += f" = {ast.unparse(default)}"
    if arguments.vararg:
        found.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        found.append("*")
    for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(ast.unparse(one) + (f" = {ast.unparse(value)}" if value is not None else ""))
    if arguments.kwarg:
        found.append(f"**{ast.unparse(arguments.kwarg)}")
    return found


def spark_errors() -> str:
    rows = [(f"`{name}`", cell(ast.get_docstring(node) or "")) for name, node in _public() if isinstance(node, ast.ClassDef)]
    return table(("error", ""), rows)


def spark_settings() -> str:
    return table(("setting", "value"), [(f"`{key}`", f"`{value}`") for key, value in _literal("sessions", "SETTINGS").items()])


def _option_table(constant: str, module: str = "options") -> str:
    return table(("option", ""), [(f"`{name}`", cell(text)) for name, text in _literal(module, constant).items()])


REGIONS: dict[str, Callable[[], str]] = {
    "bulk, jobs": lambda: _sections(CALLED),
    "bulk, writing": lambda: _sections(WRITING),
    "job runners": runners,
    "classes of reconcile": classes,
    "spark, functions": spark_functions,
    "spark, errors": spark_errors,
    "spark, settings": spark_settings,
    "spark, options of reading": lambda: _option_table("OPTIONS"),
    "spark, options of messages": lambda: _option_table("OPTIONS", "messages"),
    "spark, options of writing": lambda: _option_table("WRITE_OPTIONS"),
}
