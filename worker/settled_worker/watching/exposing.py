"""Say all metrics in Prometheus' text format. The only module that knows prometheus-client, and it loads it at first use."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from settled.core.errors import ConfigurationError
from settled.core.text import escape_controls
from settled_worker.watching.counting import Counting, Values
from settled_worker.watching.names import BUCKETS, METRICS

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL_MAX: Final = 200


def check_extra(wanted_by: str) -> None:
    """Raise ConfigurationError where the extra that `wanted_by` (a setting) needs is not installed."""
    if find_spec("prometheus_client") is None:
        raise ConfigurationError(
            f"{wanted_by} needs prometheus-client, which is not installed. Nothing was started. "
            f"Install settled[metrics], or leave the setting out"
        )


class Exposition:
    """All metrics at one moment, as a collector of a registry of our own: no other library's metrics are among them."""

    def __init__(self, counting: Counting, read: Callable[[], Values]) -> None:
        from prometheus_client import CollectorRegistry

        self._counting, self._read = counting, read
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Return the whole text."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def collect(self) -> "Iterator[Family]":
        """Yield every metric that has a value."""
        values = self._counting.values() | self._read()
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                yield self._histogram(name)
            else:
                yield self._plain(name, values.get(name, {}))

    def _plain(self, name: str, found: dict[tuple[str, ...], float]) -> "Family":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        metric = METRICS[name]
        make: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = make(name, metric.says, labels=metric.labels)
        for labels, value in sorted(found.items()):
            family.add_metric([_shown(label) for label in labels], value)
        return family  # type: ignore[no-any-return]

    def _histogram(self, name: str) -> "Family":
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(name, METRICS[name].says, labels=METRICS[name].labels)
        for contract, (counts, seconds) in sorted(self._counting.durations().items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([_shown(contract)], buckets, seconds)
        return family


def _shown(label: str) -> str:
    return escape_controls(label)[:_LABEL_MAX]
