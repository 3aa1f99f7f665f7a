"""Job runner: one method per job. ``local`` is :mod:`msgstore.jobs.local`; others are plugins.

Core creates and checks a job, which determines the result completely. A runner only decides where the work is done, so all
runners give the same rows and the same report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import attrs

from msgstore.config import structure
from msgstore.contract import ConfigError
from msgstore.jobs.diff import DiffJob, DiffReport
from msgstore.jobs.export import ExportJob, ExportReport
from msgstore.jobs.importing import ImportJob, ImportReport
from msgstore.jobs.inventory import InventoryJob, InventoryReport
from msgstore.jobs.reconcile import ReconcileJob, ReconcileReport
from msgstore.jobs.salvage import SalvageJob, SalvageReport
from msgstore.jobs.tasks import Progress
from msgstore.plugins.catalogue import Catalogue

AUTO = "auto"


class JobRunner(Protocol):
    """Executes jobs. Each method returns when the job is complete, or raises and leaves nothing behind.

    Each raises StoreError, StoreIOError, ConfigError, PluginError.
    """

    def salvage(self, job: SalvageJob, progress: Progress | None = None) -> SalvageReport:
        """Copy every intact record into a new store. Also executes migrations."""
        ...

    def reconcile(self, job: ReconcileJob, progress: Progress | None = None) -> ReconcileReport:
        """Find the class of each id by its records and the changes of its count."""
        ...

    def inventory(self, job: InventoryJob, progress: Progress | None = None) -> InventoryReport:
        """Measure segments, and forecast what collections would free."""
        ...

    def diff(self, job: DiffJob, progress: Progress | None = None) -> DiffReport:
        """Compare the messages of two stores by id and a hash of the body."""
        ...

    def export(self, job: ExportJob, progress: Progress | None = None) -> ExportReport:
        """Write records as Parquet."""
        ...

    def import_messages(self, job: ImportJob, progress: Progress | None = None) -> ImportReport:
        """Make a new store of rows of Parquet or lines of JSON."""
        ...


def choose_runner(catalogue: Catalogue, name: str, size: int, keys: Collection[str] = ()) -> tuple[str, str]:
    """Return the name of the runner for ``size`` bytes of input, and the reason if ``auto`` had a choice, else "".

    ``auto`` takes the runner with the largest ``min_input_bytes`` that ``size`` reaches, and none that lacks an option of
    ``keys``.
    """
    if name != AUTO:
        return name, ""
    pays: dict[str, int] = {}
    for other in catalogue.names("runner"):
        descriptor = catalogue.job_runner(other)
        if descriptor.min_input_bytes is not None and attrs.fields_dict(descriptor.options).keys() >= set(keys):
            pays[other] = descriptor.min_input_bytes
    if not pays:
        wanted = f" with the options {', '.join(keys)}" if keys else ""
        raise ConfigError(f"--runner auto: no runner{wanted} is installed that says when it pays; name one")
    chosen = max(
        (other for other in pays if pays[other] <= size),
        key=lambda other: (pays[other], other),
        default=min(pays, key=pays.__getitem__),
    )
    others = [f"{other} pays from {pays[other]:,} on" for other in sorted(pays, key=pays.__getitem__) if pays[other]]
    return chosen, "; ".join([f"{size:,} bytes to read", *others]) if len(pays) > 1 else ""


def make_runner(catalogue: Catalogue, name: str, options: Mapping[str, Any]) -> JobRunner:
    """Return a runner. Raises ConfigError for unknown options, and PluginError if it is not available."""
    descriptor = catalogue.job_runner(name)
    engine: JobRunner = catalogue.make(descriptor, structure(descriptor.options, options, f"--runner {name}"))
    return engine
