"""Numbers in the form that Prometheus reads, by its own client package (the extra `metrics`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from drlhp.errors import UserError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

PREFIX = "drlhp_"


class Number(NamedTuple):
    """A number now. A counter only grows while one process counts; a gauge also falls."""

    kind: Literal["counter", "gauge"]
    name: str
    meaning: str
    value: float
    labels: dict[str, str] = {}  # noqa: RUF012  # nobody changes it


def check_package() -> None:
    """Raises UserError if the package is missing."""
    if find_spec("prometheus_client") is None:
        raise UserError("metrics need a package that is not installed: run `python -m pip install prometheus_client`.")


def registry_of(read: Callable[[], Iterable[Number]]) -> CollectorRegistry:
    """Returns a registry of the numbers that `read` gives each time somebody asks."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Collector:
        def collect(self) -> Iterable[Metric]:
            families: dict[str, Any] = {}
            for number in read():
                if number.name not in families:
                    kind = CounterMetricFamily if number.kind == "counter" else GaugeMetricFamily
                    families[number.name] = kind(PREFIX + number.name, number.meaning, labels=list(number.labels))
                families[number.name].add_metric(list(number.labels.values()), number.value)
            return families.values()

    registry = CollectorRegistry()
    registry.register(Collector())
    return registry


def exposition(numbers: Iterable[Number]) -> bytes:
    """Returns the numbers as the text that Prometheus reads."""
    from prometheus_client import generate_latest

    return generate_latest(registry_of(lambda: numbers))
