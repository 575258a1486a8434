"""The console's page of the KV cache shows the blocks of each engine core and the hits of the prefix cache."""

import re

import httpx
import pytest
from playwright.sync_api import Page, expect


@pytest.fixture(scope="module")
def sim(start_module_server):
    few_blocks = ("--num-gpu-blocks-override", "41", "--max-model-len", "320")
    return start_module_server("--device", "sim", *few_blocks, "--swap-space", "1")


@pytest.fixture
def page(sim, visit) -> Page:
    page = visit(f"{sim.url}/#cache")
    expect(page.locator(".cache-card")).to_have_count(1)
    return page


def complete(server, prompt: list[int]) -> None:
    body = {"prompt": prompt, "max_tokens": 1}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200


def fact(page: Page, name: str):
    return page.locator(".cache-card dl div", has=page.locator("dt", has_text=re.compile(f"^{name}$"))).locator("dd")


def test_blocks_that_a_prompt_has_found_are_shown(sim, page):
    expect(page.locator(".cache-card .size")).to_have_text("40 blocks of 16 tokens")
    expect(page.locator(".legend .empty").last).to_have_text("free, empty 40 (100 %)")
    expect(fact(page, "KV groups")).to_have_text("all keys")

    complete(sim, [*range(100, 165)])
    expect(page.locator(".cache-card .legend li")).to_have_text(
        ["in use 0 (0 %)", "free, cached 4 (10 %)", "free, empty 36 (90 %)"]
    )
    complete(sim, [*range(100, 165)])

    expect(fact(page, "of them found")).to_have_text("64 (49 %)")
    expect(page.locator(".block-bar")).to_have_attribute("aria-label", re.compile("free, cached 4 "))


def test_evicted_blocks_and_the_host_tier_are_counted(sim, page):
    for start in (1000, 2000, 3000):
        complete(sim, [*range(start, start + 300)])

    expect(fact(page, "blocks evicted")).to_have_text(re.compile("[1-9]"))
    expect(fact(page, "host tier")).to_have_text(re.compile(r"^[1-9]\d* of [\d,]+ blocks$"))
    expect(page.locator("#cache-charts .chart")).to_have_count(4)


def test_adapters_are_a_group_of_the_choice_of_models(sim, visit):
    """Adapters need a model that takes them; here the list of models is the test's."""
    page = visit(sim.url)
    cards = [{"id": "base", "parent": None}, {"id": "poet", "parent": "base"}, {"id": "lawyer", "parent": "base"}]
    page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": cards}))
    page.click("[data-view=playground]")
    choice = page.locator("#model-choice")

    expect(choice.locator("> option")).to_have_text(["base"])
    expect(choice.locator("optgroup[label=Adapters] option")).to_have_text(["poet", "lawyer"])
    choice.select_option("lawyer")
    page.click("[data-view=overview]")
    cards.pop(1)
    page.click("[data-view=playground]")
    expect(choice.locator("optgroup option")).to_have_text(["lawyer"])
    expect(choice).to_have_value("lawyer")
