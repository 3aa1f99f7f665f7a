"""Events: counters, log records and events of one store, and the thread that calls observers.

``Telemetry`` has one method per kind of event. They are called per flush, segment or store, never per message, and never
raise. The classes of events are in ``msgstore.contract.events``.
"""
