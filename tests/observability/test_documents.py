"""Dashboard, alerts and docs/operations.md name exactly the metrics that the services export."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from tests.observability.promql import measured_by, series_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/observability"
DASHBOARD = FOLDER / "grafana/dashboards/tetrad.json"
PANELS = json.loads(DASHBOARD.read_text())["panels"]
QUERIES = sorted({target["expr"] for panel in PANELS for target in panel.get("targets", ())})
ALERTS = {rule["alert"]: rule["expr"] for rule in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]}
SCALERS = sorted(
    query
    for path in (ROOT / "deploy/kubernetes").rglob("*.yaml")
    for query in re.findall(r"^\s*query: (.*tetrad:.*)$", path.read_text(), re.MULTILINE)
)
TEXT = (ROOT / "docs/operations.md").read_text()
TITLES = {"Frontend": "frontend", "Tokenizer": "tokenizer", "Engine core": "engine-core", "Worker": "worker"}
STAGES = ("intake", "hop", "queue", "prefill", "detokenize", "decode")
OF_ALL = {"tetrad:build_info", "tetrad:tls_certificate_expiry_timestamp_seconds"}
"""What every service exports in our name."""
STANDARD = ("process_", "python_gc_")
"""What Prometheus' library counts of any process; its own documentation says what."""


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ('sum by (job) (rate(a:b_total{c="d"}[5m])) / e_count', {"a:b_total", "e_count"}),
        ("histogram_quantile(0.9, sum(rate(x_bucket[5m])) by (le)) or vector(0)", {"x_bucket"}),
        ("up == 0 and on (instance) y > 1e3", {"up", "y"}),
    ],
)
def test_the_series_of_a_query_are_found(query, names):
    assert series_of(query) == names


def test_what_an_alert_compares_is_found():
    assert list(measured_by("a > 0 and rate(b[2m]) == 0")) == ["a", "rate(b[2m])"]


def test_the_dashboard_is_what_its_program_writes():
    written = subprocess.run([sys.executable, FOLDER / "dashboard.py"], capture_output=True, text=True, check=True)

    assert written.stdout == DASHBOARD.read_text()


def test_queries_read_what_is_exported(exported):
    known = {series for families in exported.values() for family in families.values() for series in family.series} | {"up"}

    read = {query: series_of(query) for query in [*QUERIES, *ALERTS.values(), *SCALERS]}

    assert len(read) > 80
    assert SCALERS
    assert all(read.values())
    assert {query: names - known for query, names in read.items() if names - known} == {}


@pytest.mark.parametrize("title", TITLES)
def test_the_tables_have_what_each_service_exports(exported, title):
    families = exported[TITLES[title]].values()
    rows = {each.row() for each in families if each.name.startswith("tetrad:") and each.name not in OF_ALL}

    assert set(rows_under(f"### {title}")) == rows


def test_the_table_of_all_services_has_what_every_service_exports(exported):
    shared = [{name for name in families if not name.startswith(("tetrad:", *STANDARD))} for families in exported.values()]
    families = [exported["worker"][name] for name in {*shared[0], *OF_ALL}]

    assert set(rows_under("### Every service")) == {family.row() for family in families}
    assert all(each == shared[0] for each in shared)


def test_the_stages_of_a_request_add_up_to_its_time(exported):
    def total(name: str) -> float:
        return exported["frontend"][name].totals[f"{name}_sum"]

    stages = sum(total(f"tetrad:request_{stage}_time_seconds") for stage in STAGES)

    assert stages == pytest.approx(total("tetrad:e2e_request_latency_seconds"), rel=0.05)


def test_every_alert_is_explained():
    assert sorted(re.findall(r"^\| `(Tetrad\w+)` \|", TEXT, re.MULTILINE)) == sorted(ALERTS)


def test_the_http_port_shows_what_the_frontend_s_metrics_port_shows(stack, exported):
    names = set(re.findall(r"^# TYPE (\S+)", httpx.get(f"{stack.url}/metrics").text, re.MULTILINE))

    assert names == set(exported["frontend"])


def rows_under(heading: str) -> list[str]:
    """Return the metrics' rows of the table under a heading."""
    section = TEXT.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]
