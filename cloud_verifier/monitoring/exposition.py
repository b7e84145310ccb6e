"""`/metrics`: the latest figures as Prometheus has them, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.figures import Histogram, Labels
from cloud_verifier.monitoring.pages import Answer, Page, json_page, text_page
from cloud_verifier.monitoring.series import CATALOGUE, PREFIX, Kind
from cloud_verifier.monitoring.watched import Watched


class FiguresCollector(Collector):
    """Makes metrics of a snapshot, when they are asked for."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        watched = self._watched
        shot, about = watched.snapshot, watched.about
        now: dict[s.Series, dict[Labels, float]] = {
            s.READY: {(): float(not watched.ready_problem())},
            s.HEARTBEAT: {(): watched.heartbeat_age_s},
            s.SNAPSHOT_AGE: {(): watched.snapshot_age_s},
            s.INFO: {tuple(str(about.get(label, "")) for label in s.INFO.labels): 1.0},
        }
        for series in CATALOGUE:
            name = PREFIX + series.name
            if series.kind is Kind.HISTOGRAM:
                family = HistogramMetricFamily(name, series.help, labels=series.labels)
                for labels, histogram in shot.histograms.get(series, {}).items():
                    family.add_metric(labels, _buckets(histogram), histogram.sum)
                yield family
            else:
                kind = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
                plain = kind(name, series.help, labels=series.labels)
                for labels, value in (now.get(series) or shot.values.get(series, {})).items():
                    plain.add_metric(labels, value)
                yield plain


class Exposition:
    """The page of one server's metrics, with those of its process (memory, descriptors, processor time)."""

    def __init__(self, watched: Watched) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(FiguresCollector(watched))
        ProcessCollector(registry=self._registry)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type for the `Accept` header of a request."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return upper limits and how many values lie at or below them."""
    found, below = [], 0
    for limit, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        found.append((limit, float(below)))
    return found


def pages_of(watched: Watched) -> dict[str, Page]:
    """Return the pages of one server by their path."""
    exposition = Exposition(watched)

    def metrics(accept: str) -> Answer:
        return HTTPStatus.OK, *exposition.page(accept)

    return {
        "/metrics": metrics,
        "/health": text_page(watched.health_problem),
        "/ready": text_page(watched.ready_problem),
        "/load": json_page(watched.load),
        "/version": json_page(lambda: watched.about),
    }
