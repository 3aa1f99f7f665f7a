"""Job runner: one method per job. ``local`` is :mod:`msgstore.jobs.local`; others are plugins.

Core creates and checks a job, which determines the result completely. A runner only decides where the work is done, so all
runners give the same rows and the same report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sized
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import attrs

from msgstore.contract import ConfigError
from msgstore.jobs.diff import DiffJob, DiffReport, diff
from msgstore.jobs.inventory import InventoryJob, InventoryReport, inventory
from msgstore.jobs.messages.conversion_plan import ConvertJob
from msgstore.jobs.messages.conversion_report import ConvertReport
from msgstore.jobs.messages.convert import Refused
from msgstore.jobs.messages.listing import size_of
from msgstore.jobs.messages.parallel import convert_in_parts, plan_parts
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport
from msgstore.jobs.salvage import SalvageJob, SalvageReport, salvage
from msgstore.jobs.tasks import ProgressCallback, ProgressMeter, Run, group_into_tasks
from msgstore.option_values import structure
from msgstore.plugins.catalogue import Catalogue

AUTO = "auto"


class JobRunner:
    """Executes jobs. Each method returns when the job is complete, or raises and leaves nothing behind.

    Each raises StoreError, StoreIOError, ConfigError, PluginError. A subclass says in ``run`` where tasks are executed. It may
    replace a whole method.

    Progress is in bytes, unless ``progress_unit`` names another unit, such as ``tasks``. Then the total may grow during a job.
    """

    progress_unit: ClassVar[str | None] = None

    def salvage(self, job: SalvageJob, progress: ProgressCallback | None = None) -> SalvageReport:
        """Copy every intact record into a new store. Also executes migrations."""
        with self.run(job.tasks()) as run:
            return salvage(job, run, ProgressMeter(2 * job.size, progress))

    def reconcile(self, job: ReconcileJob, progress: ProgressCallback | None = None) -> ReconcileReport:
        """Find the class of each id by its records and the changes of its count."""
        from msgstore.jobs.classes import reconcile  # pyarrow

        with self.run(group_into_tasks(job.found.inputs)) as run:
            return reconcile(job, run, ProgressMeter(job.size, progress))

    def inventory(self, job: InventoryJob, progress: ProgressCallback | None = None) -> InventoryReport:
        """Measure segments, and forecast what collections would free."""
        with self.run(group_into_tasks(job.found.inputs)) as run:
            return inventory(job, run, ProgressMeter(job.size, progress))

    def diff(self, job: DiffJob, progress: ProgressCallback | None = None) -> DiffReport:
        """Compare the messages of two stores by id and a hash of the body."""
        with self.run(max((group_into_tasks(found.inputs) for found in (job.found_a, job.found_b)), key=len)) as run:
            return diff(job, run, ProgressMeter(job.size, progress))

    def convert(
        self, job: ConvertJob, progress: ProgressCallback | None = None, on_refused: Refused | None = None
    ) -> ConvertReport:
        """Copy messages from a source into a sink, which joins what the tasks have written."""
        report, parts = plan_parts(job)
        with self.run(parts) as run:
            return convert_in_parts(
                job, report, parts, run, ProgressMeter(size_of(Path(job.source.path)), progress), on_refused
            )

    def run(self, tasks: Sized) -> AbstractContextManager[Run[Any, Any]]:
        """Return a context with a function that executes ``tasks``."""
        raise NotImplementedError


def choose_runner(catalogue: Catalogue, name: str, size: int, keys: Collection[str] = ()) -> tuple[str, str]:
    """Return the name of the runner for ``size`` bytes of input, and the reason if ``auto`` had a choice, else "".

    ``auto`` takes the runner with the largest ``min_input_bytes`` that ``size`` reaches, and none that lacks an option of
    ``keys``.
    """
    if name != AUTO:
        return name, ""
    pays: list[tuple[int, str]] = []
    for other in catalogue.names("runner"):
        descriptor = catalogue.job_runner(other)
        if descriptor.min_input_bytes is not None and attrs.fields_dict(descriptor.options).keys() >= set(keys):
            pays.append((descriptor.min_input_bytes, other))
    if not pays:
        wanted = f" with the options {', '.join(keys)}" if keys else ""
        raise ConfigError(f"--runner auto: no runner{wanted} is installed that says when it pays; name one")
    pays.sort()
    _, chosen = max((pair for pair in pays if pair[0] <= size), default=pays[0])
    others = [f"{other} pays from {least:,} on" for least, other in pays if least]
    return chosen, "; ".join([f"{size:,} bytes to read", *others]) if len(pays) > 1 else ""


def make_runner(catalogue: Catalogue, name: str, options: Mapping[str, Any]) -> JobRunner:
    """Return a runner. Raises ConfigError for unknown options, and PluginError if it is not available."""
    descriptor = catalogue.job_runner(name)
    runner: JobRunner = catalogue.make(descriptor, structure(descriptor.options, options, f"--runner {name}"))
    return runner
