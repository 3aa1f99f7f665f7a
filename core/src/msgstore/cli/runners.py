"""``--runner``: selection of the job runner that executes a job, and its options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import attrs
import click

from msgstore.cli import output
from msgstore.cli.options import bundle
from msgstore.jobs.runner import AUTO, JobRunner, choose_runner, make_runner
from msgstore.plugins.catalogue import Catalogue

R = TypeVar("R")


@attrs.frozen
class RunnerOptions:
    """Values of the options that select a job runner. ``engine`` is the former name of ``runner``."""

    runner: str = AUTO
    engine: str | None = None
    master: str | None = None
    processes: int | None = None

    def run(
        self,
        catalogue: Catalogue,
        size: int,
        progress: contextlib.AbstractContextManager[output.Bar | None],
        call: Callable[[JobRunner, output.Bar | None], R],
    ) -> R:
        """Call ``call`` with the runner for ``size`` bytes of input, and return its report.

        If ``auto`` had a choice, print the choice and its reason on standard error.
        """
        given = {"master": self.master, "processes": self.processes}
        given = {key: value for key, value in given.items() if value is not None}
        name, reason = choose_runner(catalogue, self.engine or self.runner, size, given)
        if reason:
            output.note(f"runner {name}: {reason}")
        runner = make_runner(catalogue, name, given)
        with progress as bar:
            return call(runner, bar)


options = bundle(
    "runner",
    RunnerOptions,
    runner=click.option("--runner", default=AUTO, metavar="NAME", show_default=True, help="auto (by size), local, or spark."),
    engine=click.option("--engine", metavar="NAME", hidden=True, help="Former name of --runner."),
    master=click.option("--master", metavar="URL", help="Where Spark runs: local[4], spark://host:7077, sc://host:15002."),
    processes=click.option("--processes", type=int, metavar="N", help="Number of worker processes of the local runner."),
)
"""Adds ``--runner``, ``--master`` and ``--processes``. The command gets them as ``runner``."""
