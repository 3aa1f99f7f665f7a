"""``--engine``: who carries a job over many segments out, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import click

from msgstore.cli import output
from msgstore.jobs.runner import AUTO, JobRunner, choose_engine, make_engine
from msgstore.plugins.catalogue import Catalogue

F = TypeVar("F", bound=Callable[..., Any])


@attrs.frozen
class RunnerOptions:
    """What the options say."""

    engine: str = AUTO
    master: str | None = None
    processes: int | None = None

    def make(self, catalogue: Catalogue, size: int) -> JobRunner:
        """The engine for ``size`` bytes of input; what ``auto`` chose, and why, is said on standard error."""
        given = {"master": self.master, "processes": self.processes}
        given = {key: value for key, value in given.items() if value is not None}
        name, why = choose_engine(catalogue, self.engine, size, given)
        if why:
            output.note(f"engine {name}: {why}")
        return make_engine(catalogue, name, given)


def options(function: F) -> F:
    """``--engine``, ``--master``, ``--processes``; the command takes them as ``runner_options``."""
    engine = click.option("--engine", default=AUTO, metavar="NAME", show_default=True, help="auto (by size), local, or spark.")
    master = click.option("--master", metavar="URL", help="Where Spark runs: local[4], spark://host:7077, sc://host:15002.")
    processes = click.option("--processes", type=int, metavar="N", help="How many the local engine uses at a time.")

    def wanting(*args: Any, engine: str, master: str | None, processes: int | None, **rest: Any) -> Any:
        return function(*args, runner_options=RunnerOptions(engine, master, processes), **rest)

    wanting.__name__, wanting.__doc__ = function.__name__, function.__doc__
    wanting.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]  # click keeps them there
    return engine(master(processes(wanting)))  # type: ignore[return-value]  # it is called as the function is
