"""The overview of a running stack: every service, moving charts, and the last requests, for users and operators."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

PHONE = {"width": 390, "height": 844}
# What can be read or used, and lies beyond an edge.
OUTSIDE = """() => [...document.querySelectorAll('button, a, input, textarea, h2, h3, figure')].filter(each => {
    const box = each.getBoundingClientRect(), seen = box.width > 1 && getComputedStyle(each).visibility !== 'hidden';
    return seen && !each.matches('.skip') && (box.left < -1 || box.right > innerWidth + 1);
}).map(each => each.outerHTML.slice(0, 80))"""
NAMES = ["frontend", "tokenizer 0", "tokenizer 1", "engine core 0", "worker 0"]


@pytest.fixture(scope="module")
def sim(start_module_server):
    os.environ["TETRAD_WORKER_SIM_SECONDS_PER_STEP"] = "0.02"
    try:
        return start_module_server("--device", "sim")
    finally:
        del os.environ["TETRAD_WORKER_SIM_SECONDS_PER_STEP"]


@pytest.fixture
def page(sim, visit) -> Page:
    page = visit(sim.url)
    expect(page.locator("#link")).to_have_text("Live")
    return page


@contextmanager
def load(url: str, number: int = 4) -> Iterator[None]:
    """Keep so many requests running."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not over.is_set():
                client.post(f"{url}/v1/completions", json={"prompt": "a secret", "max_tokens": 40, "ignore_eos": True})

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def chart(page: Page, title: str):
    return page.locator(".chart", has_text=title)


def test_every_service_is_shown_as_connected(page):
    cards = page.locator(".service")

    expect(cards.locator("h3")).to_have_text(NAMES)
    expect(cards.locator(".state")).to_have_text(["connected"] * len(NAMES))
    assert page.locator(".edges path").count() == len(NAMES) - 1
    assert page.title() == "Tetrad"


def test_the_other_pages_of_the_server_are_a_click_away(page):
    for name, text in (("Docs", "/v1/chat/completions"), ("Metrics", "tetrad:num_requests_running")):
        with page.expect_popup() as opened:
            page.get_by_role("navigation", name="Further pages").get_by_role("link", name=name).click()
        expect(opened.value.get_by_text(text).first).to_be_attached()

    # No server of traces is configured.
    expect(page.locator("#traces")).to_be_hidden()


def test_traces_are_linked_where_they_are_configured(start_server, visit):
    page = visit(start_server("--device", "sim", "--traces-url", "http://127.0.0.1:16686/search").wait_ready().url)

    expect(page.get_by_role("link", name="Traces")).to_have_attribute("href", "http://127.0.0.1:16686/search")


def test_charts_move_under_load(sim, page):
    tokens = chart(page, "Tokens per second").locator(".line-0")
    before = tokens.get_attribute("d")

    with load(sim.url):
        expect(chart(page, "Requests").locator("b").first).to_have_text("4")
        expect(chart(page, "Tokens per second").locator("b")).to_have_text(re.compile(r"^[\d,]{2,}(\.\d)?$"))
        for title in ("Time to first token", "Time between tokens"):
            expect(chart(page, title).locator("b")).to_have_text([re.compile(r"^[\d.]+ m?s$")] * 3)

    assert tokens.get_attribute("d") != before
    expect(chart(page, "Requests").locator("b").first).to_have_text("0")


def test_quantiles_are_those_of_the_durations_that_ended_in_the_time(page):
    """Of 100 new durations, 50 in the bucket up to 0.1 s, 40 in that up to 0.5 s, 10 in that up to 1 s."""
    shown = page.evaluate(
        """async () => {
            const { History } = await import('/console/static/history.js');
            const history = new History();
            history.add(1, { times: [0, 7, [[0.1, 7], [0.5, 7], [1, 7]]] });
            history.add(2, { times: [40, 107, [[0.1, 57], [0.5, 97], [1, 107]]] });
            history.add(3, { times: [40, 107, [[0.1, 57], [0.5, 97], [1, 107]]] });
            const valueOf = (share, overS) => history.quantile('times', share, overS).at(-1).value;
            return [valueOf(0.25, 15), valueOf(0.5, 15), valueOf(0.95, 15), valueOf(0.5, 1)];
        }"""
    )

    assert shown[:3] == pytest.approx([0.05, 0.1, 0.75])
    assert shown[3] is None


def test_phases_are_drawn_on_a_log_scale(page):
    """A queue of 10 ms, a prefill until 100 ms and a decode until 10 s: one, one and two of four powers of ten from 1 ms on."""
    places = page.evaluate(
        """async () => {
            const { Requests } = await import('/console/static/requests.js');
            const rows = document.createElement('tbody'), empty = document.createElement('p');
            const request = {
                request_id: 'a', arrival_time: 0, num_prompt_tokens: 1, num_generation_tokens: 1, finish_reasons: [],
                total_s: 10, queue_s: 0.01, prefill_s: 0.09, decode_s: 9.9,
            };
            new Requests(rows, empty).update([request], '', 'm', true);
            const parts = [...rows.querySelectorAll('.phase-bar i')].map(part => [part.style.left, part.style.width]);
            const spoken = rows.querySelector('.phase-bar').ariaLabel;
            return [parts.flat().map(parseFloat), spoken, document.getElementById('phase-scale').textContent];
        }"""
    )

    assert places[0] == pytest.approx([0, 25, 25, 25, 50, 50])
    assert places[1] == "queue 10 ms (0.1 %), prefill 90 ms (0.9 %), decode 9.90 s (99 %)"
    assert places[2] == "log scale, 1.0 ms to 10.0 s"


def test_a_chart_is_read_by_keyboard(page):
    requests = chart(page, "Requests")
    requests.locator("svg").focus()
    page.keyboard.press("ArrowLeft")

    expect(requests.locator("time")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    page.keyboard.press("Escape")
    expect(requests.locator("time")).to_have_text("")


def test_a_request_is_listed_with_its_phases_and_without_its_text(sim, page):
    answer = httpx.post(
        f"{sim.url}/v1/completions", json={"prompt": "a secret", "max_tokens": 7, "ignore_eos": True}, timeout=60
    ).json()
    row = page.locator("#request-rows tr", has_text=answer["id"])

    expect(row.locator("[data-label=Output]")).to_have_text("7")
    expect(row.locator(".finish")).to_have_text("length")
    assert [part.get_attribute("class") for part in row.locator(".phase-bar i").all()] == ["queue", "prefill", "decode"]
    assert "decode" in row.locator(".phase-bar").get_attribute("aria-label")
    assert "a secret" not in page.content()


def test_a_killed_worker_is_shown_as_lost_and_then_as_back(sim, page):
    worker = page.locator(".service[data-kind=worker]")
    sim.process_of("worker_svc").send_signal(signal.SIGKILL)

    expect(worker.locator(".state")).to_have_text("lost")
    expect(worker.locator(".problem")).to_contain_text("worker was lost")
    expect(worker.locator(".state")).to_have_text("connected")
    expect(worker.locator(".problem")).to_be_hidden()


def test_a_killed_frontend_is_shown_as_lost_and_the_page_comes_back(sim, page):
    sim.process_of("frontend").send_signal(signal.SIGKILL)

    expect(page.locator("#link")).to_have_text("Reconnecting")
    expect(page.locator(".service[data-kind=frontend] .state")).to_have_text("lost")
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator(".service .state")).to_have_text(["connected"] * len(NAMES))


def test_the_theme_is_the_system_s_until_another_is_chosen(sim, visit):
    page = visit(sim.url, color_scheme="dark")
    root, button = page.locator("html"), page.locator("#theme-button")

    expect(root).to_have_attribute("data-theme", "dark")
    button.click()
    expect(root).to_have_attribute("data-theme", "light")
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    button.click()
    page.emulate_media(color_scheme="light")
    expect(root).to_have_attribute("data-theme", "light")


@pytest.mark.parametrize("view", ["overview", "cache", "playground"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_cut_off_at_any_width(sim, visit, view, width):
    page = visit(f"{sim.url}/#{view}", size={"width": width, "height": 800})
    expect(page.locator(f"#{view}")).to_be_visible()
    expect(page.locator(".service")).to_have_count(len(NAMES))

    wider = page.evaluate(
        "view => [document.documentElement, document.getElementById(view)].some(each => each.scrollWidth > each.clientWidth)",
        view,
    )
    outside = page.evaluate(OUTSIDE)

    assert not wider
    assert outside == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["overview", "cache", "playground"])
@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE], ids=["desktop", "phone"])
def test_it_is_accessible(sim, visit, scheme, view, size):
    """Names, roles, contrast and all else that axe-core can tell."""
    page = visit(f"{sim.url}/#{view}", size=size, color_scheme=scheme)
    expect(page.locator("#link")).to_have_text("Live")

    found = Axe().run(page).response["violations"]

    assert [(each["id"], [node["html"][:100] for node in each["nodes"]]) for each in found] == []


def test_nothing_moves_while_the_page_loads_and_data_come(sim, visit):
    page = visit(sim.url)
    shifts = """() => new Promise(resolve => {
        let sum = 0;
        new PerformanceObserver(list => { for (const each of list.getEntries()) sum += each.value; })
            .observe({type: 'layout-shift', buffered: true});
        setTimeout(() => resolve(sum), 3000);
    })"""

    with load(sim.url):
        # 0.1 is what browsers' makers call good.
        assert page.evaluate(shifts) < 0.02


def test_it_can_be_used_by_keyboard_alone(sim, visit):
    page = visit(sim.url)
    expect(page.locator("#link")).to_have_text("Live")
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)"))

    assert reached[:7] == ["Skip to content", "Tetrad", "Overview", "KV cache", "Playground", "Docs", "Metrics"]
    assert {"key-button", "theme-button", "requests"} <= set(reached)
