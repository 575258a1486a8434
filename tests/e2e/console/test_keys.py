"""The console of a server with API keys: the page loads, prompts for a key, and shows the data that this key may see."""

import httpx
import pytest
from playwright.sync_api import Page, expect


@pytest.fixture(scope="module")
def closed(start_module_server):
    return start_module_server("--device", "sim", "--api-key", "user", "--operator-api-key", "boss")


def give_key(page: Page, key: str) -> None:
    page.fill("#key", key)
    page.keyboard.press("Enter")


def test_the_page_asks_for_a_key_and_shows_nothing_before(closed, visit):
    page = visit(closed.url)
    dialog = page.locator("#key-dialog")

    expect(dialog).to_be_visible()
    expect(page.locator("#link")).to_have_text("Key needed")
    expect(page.locator(".service")).to_have_count(0)
    give_key(page, "wrong")
    expect(page.locator("#key-reason")).to_have_text("Incorrect API key provided.")


def test_a_user_s_key_shows_services_and_chats_but_no_requests(closed, visit):
    page = visit(closed.url)
    give_key(page, "user")

    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator(".service")).to_have_count(5)
    expect(page.locator("#requests-empty")).to_contain_text("shown to operators")
    page.click("[data-view=playground]")
    page.fill("#message", "hello")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant[data-state=done]")).to_be_visible()


def test_code_names_a_variable_in_place_of_the_key(closed, visit):
    page = visit(f"{closed.url}/#playground")
    give_key(page, "user")
    expect(page.locator("#link")).to_have_text("Live")
    page.click("#show-code")
    shown = [page.locator("#code-text").text_content()]
    page.get_by_role("button", name="Python").click()
    shown.append(page.locator("#code-text").text_content())

    assert ["TETRAD_API_KEY" in text for text in shown] == [True, True]
    assert ['user"' in text.replace('"role": "user"', "") for text in shown] == [False, False]


def test_an_operator_s_key_shows_requests(closed, visit):
    httpx.post(f"{closed.url}/v1/completions", json={"prompt": "a", "max_tokens": 2}, headers={"x-api-key": "user"}, timeout=60)
    page = visit(closed.url)
    give_key(page, "boss")

    expect(page.locator("#request-rows tr").first).to_be_visible()


def test_a_key_lives_in_the_tab_alone_and_can_be_forgotten(closed, visit):
    page = visit(closed.url)
    give_key(page, "user")
    expect(page.locator("#link")).to_have_text("Live")
    kept = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie, location.href]")
    page.reload()
    expect(page.locator("#link")).to_have_text("Live")
    page.click("#key-button")
    page.click("#key-forget")
    expect(page.locator("#link")).to_have_text("Key needed")

    assert ["user" in text for text in kept] == [True, False, False, False]
    assert page.evaluate("sessionStorage.length") == 0
