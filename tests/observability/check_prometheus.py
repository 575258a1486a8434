"""Every query of the dashboard and every alert, evaluated by a real Prometheus that scrapes a running stack.

`make observability-test`; not among the tests of every run, as it needs Prometheus and half a minute of its scrapes.
"""

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.observability.conftest import free_ports
from tests.observability.promql import measured_by
from tests.observability.test_documents import ALERTS, DASHBOARD, FOLDER, PANELS, ROOT, STAGES
from tests.observability.traffic import send_round

BIN = Path(os.environ.get("TEST_PROMETHEUS", "/usr/bin"))
OBSERVED_S = 25.0
RATE_INTERVAL = "10s"
ALERT_OF_CERTIFICATES = "TetradCertificateEnds"
"""Has a test of its own: the stack that is measured has plain connections, and no certificate."""
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}: {target['legendFormat']}")
    for panel in PANELS
    for target in panel.get("targets", ())
]


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that has seen a stack under load."""

    url: str

    def get(self, path: str, **parameters: str) -> dict:
        response = httpx.get(f"{self.url}/api/v1/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def values(self, query: str) -> list[float]:
        query = query.replace("$__rate_interval", RATE_INTERVAL)
        return [float(each["value"][1]) for each in self.get("query", query=query)["result"]]


@pytest.fixture(scope="module")
def prometheus(stack, tmp_path_factory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(config_for(stack.ports)))
    [port] = free_ports(1)
    command = [BIN / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        wait_ready(found, process, folder / "log")
        with traffic(stack.url):
            time.sleep(OBSERVED_S)  # scrapes take their time: there is nothing to wait for but that
            yield found
    finally:
        process.terminate()
        process.wait(20)


def config_for(ports: dict[str, int]) -> dict:
    """Return deploy's configuration, with this machine's ports instead of names, and more scrapes."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "2s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        first = ports[job["job_name"]]
        # There are two tokenizers, and the frontend may prefer either.
        found = [first, first + 1] if job["job_name"] == "tokenizer" else [first]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in found]}]
    assert len(config["scrape_configs"]) == len(ports)
    return config


def wait_ready(found: Prometheus, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{found.url}/-/ready").status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@contextlib.contextmanager
def traffic(url: str) -> Iterator[None]:
    """Send one round after the other while the context is open."""
    stop = threading.Event()

    def send() -> None:
        number = 1
        while not stop.is_set():
            send_round(url, number)
            number += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", ["prometheus.yml", "alerts.yml"])
def test_prometheus_own_tool_accepts_the_files(name):
    kind = "rules" if name == "alerts.yml" else "config"

    checked = subprocess.run([BIN / "promtool", "check", kind, FOLDER / name], capture_output=True, text=True)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_service_is_scraped(prometheus):
    health = sorted((each["labels"]["job"], each["health"]) for each in prometheus.get("targets")["activeTargets"])

    assert health == [(job, "up") for job in ("engine-core", "frontend", "tokenizer", "tokenizer", "worker")]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_dashboard_has_an_answer(prometheus, query):
    values = prometheus.values(query)

    assert any(math.isfinite(value) for value in values), query


def test_the_alert_of_certificates_goes_off_30_days_before_one_ends(tmp_path):
    series = [
        {
            "series": f'tetrad:tls_certificate_expiry_timestamp_seconds{{file="{days}.crt"}}',
            "values": f"{days * 86400 + 600}x20",
        }
        for days in (29, 31)
    ]
    alerts = [{"exp_labels": {"severity": "warning", "file": "29.crt"}}]
    checks = {"interval": "1m", "input_series": series}
    checks["alert_rule_test"] = [{"eval_time": "10m", "alertname": ALERT_OF_CERTIFICATES, "exp_alerts": alerts}]
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("annotations")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [checks]}))

    checked = subprocess.run([BIN / "promtool", "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("alert", sorted(ALERTS.keys() - {ALERT_OF_CERTIFICATES}))
def test_an_alert_measures_something_and_is_silent_while_nothing_is_wrong(prometheus, alert):
    rules = {rule["name"]: rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]}

    assert rules[alert]["health"] == "ok"
    assert rules[alert]["state"] == "inactive"
    assert all(prometheus.values(part) for part in measured_by(ALERTS[alert]))


def test_the_stages_of_a_request_add_up_to_its_time(prometheus):
    def mean(name: str) -> float:
        [value] = prometheus.values(f"sum({name}_sum) / sum({name}_count)")
        return value

    stages = sum(mean(f"tetrad:request_{stage}_time_seconds") for stage in STAGES)

    assert stages == pytest.approx(mean("tetrad:e2e_request_latency_seconds"), rel=0.05)


def test_the_picture_in_the_documents_is_drawn_from_the_answers(prometheus, tmp_path):
    """`make observability-test PICTURE=docs/images/dashboard.png` keeps it."""
    picture = Path(os.environ.get("TEST_PICTURE") or tmp_path / "dashboard.png")
    command = [sys.executable, ROOT / "tools/dashboard_preview.py", DASHBOARD, "--prometheus", prometheus.url]

    subprocess.run([*command, "--seconds", str(OBSERVED_S), "--rate-interval", RATE_INTERVAL, "--out", picture], check=True)

    assert picture.read_bytes()[:4] == b"\x89PNG"
