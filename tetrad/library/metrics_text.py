"""Metrics text: reads numbers by name from Prometheus' exposition format. Called by LLM and `tetrad status`."""

from prometheus_client.parser import text_string_to_metric_families

_SHARE = "_perc"


def read_metrics(text: str) -> dict[str, float]:
    """Return counters and gauges by their names, without prefix and `_total`, summed over their labels; of shares the largest.

    If several frontends share a port, each reports the load of all engine cores: the largest value of a gauge is returned.
    """
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.type not in ("counter", "gauge"):
            continue
        of_frontends: dict[str, float] = {}
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                frontend = sample.labels.get("frontend", "") if family.type == "gauge" else ""
                before = of_frontends.get(frontend, 0.0)
                is_share = family.name.endswith(_SHARE)
                of_frontends[frontend] = max(before, sample.value) if is_share else before + sample.value
        name = family.name.rpartition(":")[2]
        values[name] = values.get(name, 0.0) + max(of_frontends.values(), default=0.0)
    return values
