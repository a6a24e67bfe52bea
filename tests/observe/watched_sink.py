"""A Prometheus sink with methods that read its values."""

from prometheus_client import CollectorRegistry

from abate import observe
from abate.observe.prometheus import PrometheusSink


class Watched:
    """A sink that is installed, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sink = PrometheusSink(self.registry)

    def __enter__(self):
        observe.install(self.sink)
        return self

    def __exit__(self, *_):
        observe.remove(self.sink)

    def value(self, metric, **labels):
        return self.registry.get_sample_value(f"abate_{metric}", labels)

    def ended(self, policy):
        """Return the count of each outcome of a policy's calls."""
        (family,) = (family for family in self.registry.collect() if family.name == "abate_calls")
        return {
            sample.labels["outcome"]: sample.value for sample in family.samples if sample.labels["policy"] == policy
        }

    def calls(self, policy):
        """Return the same without zeros."""
        return {outcome: count for outcome, count in self.ended(policy).items() if count}

    def series(self, name):
        """Return the series that have this name as a label value, whatever else the process has."""
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        return {(sample.name, *sample.labels.items()) for sample in samples if name in sample.labels.values()}
