"""`/metrics`: the latest figures as Prometheus has them, by prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cloud_verifier.monitoring.figures import Histogram, Labels
from cloud_verifier.monitoring.pages import Answer, Page, json_page, text_page
from cloud_verifier.monitoring.series import INFO, PREFIX, Kind, Series


class Shown(Protocol):
    """What has figures to be shown: a verifier (`Watched`), or a cluster's gateway (`gateway.WatchedGateway`)."""

    @property
    def about(self) -> Mapping[str, Any]: ...

    @property
    def catalogue(self) -> Sequence[Series]: ...

    @property
    def more(self) -> Mapping[str, Callable[[], Any]]:
        """What its further pages show as JSON, by their path."""

    def values(self) -> Mapping[Series, Mapping[Labels, float]]:
        """Return counters and gauges, by the values of their labels."""

    def histograms(self) -> Mapping[Series, Mapping[Labels, Histogram]]: ...

    def health_problem(self) -> str: ...

    def ready_problem(self) -> str: ...

    def load(self) -> msgspec.Struct: ...


class FiguresCollector(Collector):
    """Makes metrics of the latest figures, when they are asked for."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        shown = self._shown
        values, histograms = shown.values(), shown.histograms()
        about = {INFO: {tuple(str(shown.about.get(label, "")) for label in INFO.labels): 1.0}}
        for series in shown.catalogue:
            name = PREFIX + series.name
            if series.kind is Kind.HISTOGRAM:
                family = HistogramMetricFamily(name, series.help, labels=series.labels)
                for labels, histogram in histograms.get(series, {}).items():
                    family.add_metric(labels, _buckets(histogram), histogram.sum)
                yield family
            else:
                kind = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
                plain = kind(name, series.help, labels=series.labels)
                for labels, value in (about.get(series) or values.get(series, {})).items():
                    plain.add_metric(labels, value)
                yield plain


def pages_of(shown: Shown) -> dict[str, Page]:
    """Return the pages by their path; `/metrics` has those of this process as well (memory, descriptors, CPU time)."""
    registry = CollectorRegistry()
    registry.register(FiguresCollector(shown))
    ProcessCollector(registry=registry)

    def metrics(accept: str) -> Answer:
        encoder, content_type = choose_encoder(accept)
        return HTTPStatus.OK, encoder(registry), content_type

    return {
        "/metrics": metrics,
        "/health": text_page(shown.health_problem),
        "/ready": text_page(shown.ready_problem),
        "/load": json_page(shown.load),
        "/version": json_page(lambda: shown.about),
        **{path: json_page(value) for path, value in shown.more.items()},
    }


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return upper limits and how many values lie at or below them."""
    found, below = [], 0
    for limit, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        found.append((limit, float(below)))
    return found
