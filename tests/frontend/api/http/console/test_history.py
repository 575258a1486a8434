"""Rates and means that the console computes from counters, run by Node; skipped where it is missing."""

import json
import shutil
import subprocess

import pytest

from tetrad.frontend.api.http.console import routes

SCRIPT = """
import {{ History }} from {module};
const history = new History();
for (const [second, snapshot] of {snapshots}.entries()) history.add(1000 + second, ...snapshot);
console.log(JSON.stringify(history.{call}.map((point) => point.value)));
"""


@pytest.fixture
def values(tmp_path):
    """Return a function that returns the values of a chart: the call of a History, and the arguments of its snapshots."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    module = tmp_path / "history.mjs"
    shutil.copy(routes._DIRECTORY / "history.js", module)

    def run(call: str, *snapshots: tuple) -> list[float | None]:
        script = SCRIPT.format(module=json.dumps(str(module)), snapshots=json.dumps(snapshots), call=call)
        ran = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


def test_a_rate_is_the_growth_of_a_counter_in_a_second(values):
    assert values("rate('tokens', 1)", *([{"tokens": number}] for number in (10, 15, 15, 35))) == [5, 0, 20]


def test_counters_that_fell_have_no_rate_mean_quantile_or_share_until_they_grow_again(values):
    """They are sums over models, one of which was unloaded: what the others counted before did not happen in this second."""
    steps = ((100.0, 50, 100), (101.0, 52, 104), (1.0, 4, 8), (2.0, 8, 16))
    loads = [[{"t": [sum_s, number, [[1, number]]], "hits": hits, "queries": 2 * hits}] for sum_s, number, hits in steps]

    assert values("rate('hits', 1)", *loads) == [4, None, 8]
    assert values("mean('t', 1)", *loads) == [0.5, None, 0.25]
    assert values("quantile('t', 0.5, 1)", *loads) == [0.5, None, 0.5]
    assert values("share('hits', 'queries', 1)", *loads) == [0.5, None, 0.5]


def engine(started: int, num_cached: int | None) -> dict:
    return {"up_since": started, "kv_cache": None if num_cached is None else {"cached": num_cached}}


def test_caches_count_while_their_engine_cores_answer(values):
    """One that does not answer for a moment adds nothing, and no jump when it answers again."""
    others = (None, 5000, 5001)
    snapshots = [[{}, [engine(1, 7 * second), engine(2, other)]] for second, other in enumerate((5000, *others))]

    assert values("rateOfCaches('cached', 1)", *snapshots) == [7, 7, 8]


def test_a_restarted_engine_core_s_cache_counts_from_zero(values):
    snapshots = [
        [{}, [engine(1, 9000), engine(2, 4000)]],
        [{}, [engine(1, 9001), engine(3, 10)]],
        [{}, [engine(1, 9001), engine(3, 12)]],
    ]

    assert values("rateOfCaches('cached', 1)", *snapshots) == [1, 2]
