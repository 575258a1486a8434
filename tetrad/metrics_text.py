"""Metrics text: Prometheus' exposition format -> numbers by name. Called by LLM and `tetrad status`."""

from prometheus_client.parser import text_string_to_metric_families


def read_metrics(text: str) -> dict[str, float]:
    """Return counters and gauges by their names without prefix and `_total`, summed over their labels."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.type not in ("counter", "gauge"):
            continue
        name = family.name.rpartition(":")[2]
        total = sum(sample.value for sample in family.samples if not sample.name.endswith("_created"))
        values[name] = values.get(name, 0.0) + total
    return values
