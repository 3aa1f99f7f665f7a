"""``--runner``: selection of the job runner that executes a job, and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import click

from msgstore.cli import output
from msgstore.jobs.runner import AUTO, JobRunner, choose_runner, make_runner
from msgstore.plugins.catalogue import Catalogue

F = TypeVar("F", bound=Callable[..., Any])


@attrs.frozen
class RunnerOptions:
    """Values of the options that select a job runner."""

    name: str = AUTO
    master: str | None = None
    processes: int | None = None

    def make(self, catalogue: Catalogue, size: int) -> JobRunner:
        """Return the runner for ``size`` bytes of input. If ``auto`` had a choice, print the choice and its reason on standard
        error."""
        given = {"master": self.master, "processes": self.processes}
        given = {key: value for key, value in given.items() if value is not None}
        name, reason = choose_runner(catalogue, self.name, size, given)
        if reason:
            output.note(f"runner {name}: {reason}")
        return make_runner(catalogue, name, given)


def options(function: F) -> F:
    """Add ``--runner``, ``--master`` and ``--processes``. The command gets them as ``runner_options``.

    ``--engine``, the former name of ``--runner``, is accepted and hidden.
    """
    runner = click.option("--runner", default=AUTO, metavar="NAME", show_default=True, help="auto (by size), local, or spark.")
    engine = click.option("--engine", metavar="NAME", hidden=True, help="Former name of --runner.")
    master = click.option("--master", metavar="URL", help="Where Spark runs: local[4], spark://host:7077, sc://host:15002.")
    processes = click.option("--processes", type=int, metavar="N", help="Number of worker processes of the local runner.")

    def with_options(
        *args: Any, runner: str, engine: str | None, master: str | None, processes: int | None, **rest: Any
    ) -> Any:
        return function(*args, runner_options=RunnerOptions(runner if engine is None else engine, master, processes), **rest)

    with_options.__name__, with_options.__doc__ = function.__name__, function.__doc__
    with_options.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]  # click keeps them there
    return runner(engine(master(processes(with_options))))  # type: ignore[return-value]  # called like the function
