"""Keeps the values of series, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics

from cloud_verifier.monitoring.series import KNOWN, PREFIX, Labels, Series

disable_created_metrics()  # type: ignore[no-untyped-call]


class SeriesStore:
    """Keeps the values of all series of a catalogue. One thread writes, any may read."""

    def __init__(self, catalogue: Iterable[Series]) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[Series, Any] = {}
        self._kept: dict[Series, float] = {}
        """The latest values of counters that are kept elsewhere."""
        for series in catalogue:
            buckets: dict[str, Any] = {"buckets": series.bounds} if series.bounds else {}
            name = PREFIX + series.name
            self._metrics[series] = series.kind(name, series.help, series.labels, registry=self.registry, **buckets)
            for value in (value for label in series.labels for value in KNOWN.get(label, ())):
                self.child(series, value)

    def child(self, series: Series, *labels: str) -> Any:
        """Return the metric of these labels; it begins at 0."""
        metric = self._metrics[series]
        return metric.labels(*labels) if labels else metric

    def count(self, series: Series, amount: float = 1.0, *labels: str) -> None:
        """Add to a counter."""
        self.child(series, *labels).inc(amount)

    def set(self, series: Series, value: float, *labels: str) -> None:
        """Set a gauge, or a counter without labels that is kept elsewhere, which may begin anew."""
        if series.kind is Gauge:
            self.child(series, *labels).set(value)
        else:
            self.child(series).inc(max(0.0, value - self._kept.get(series, 0.0)))
            self._kept[series] = value

    def set_all(self, series: Series, values: Mapping[Labels, float]) -> None:
        """Set a gauge for these labels and for no others."""
        for labels in self.values(series).keys() - values.keys():
            self._metrics[series].remove(*labels)
        for labels, value in values.items():
            self.set(series, value, *labels)

    def observe(self, series: Series, value: float, *labels: str, times: int = 1) -> None:
        """Enter a value in a histogram, so many times."""
        child = self.child(series, *labels)
        for _ in range(times):
            child.observe(value)

    def values(self, series: Series) -> dict[Labels, float]:
        """Return a counter or gauge by the values of its labels."""
        return {
            tuple(sample.labels.values()): sample.value
            for family in self._metrics[series].collect()
            for sample in family.samples
        }

    def value(self, series: Series, *labels: str) -> float:
        """Return a counter or gauge, 0 where it was never touched."""
        return self.values(series).get(labels, 0.0)

    def total(self, series: Series) -> float:
        """Return the sum over all labels."""
        return sum(self.values(series).values())
