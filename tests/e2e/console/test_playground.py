"""The playground on the real model: answers stream, can be stopped and show their probabilities; no text becomes markup."""

import json
import math
import subprocess
import sys

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.console.chat import ANSWERED, QUESTION, ask, mock_answer, setting, show_tokens


@pytest.fixture
def page(server, visit) -> Page:
    page = visit(f"{server.url}/#playground")
    expect(page.locator("#message")).to_be_focused()
    return page


def test_an_answer_is_streamed_and_is_the_api_s(server, page):
    setting(page, temperature=0, max_tokens=96)
    page.evaluate(
        """() => {
            window.lengths = new Set();
            new MutationObserver(() => window.lengths.add(document.querySelector('.assistant .body').textContent.length))
                .observe(document.getElementById('messages'), {childList: true, subtree: true, characterData: true});
        }"""
    )
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 96}
    same = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()

    assert page.locator(f"{ANSWERED} .body").text_content() == same["choices"][0]["message"]["content"]
    assert page.evaluate("window.lengths.size") > 3
    numbers = page.locator(f"{ANSWERED} .numbers").text_content()
    assert f"{same['usage']['completion_tokens']} tokens" in numbers
    assert "tokens/s" in numbers
    assert "first token after" in numbers


def test_a_conversation_goes_on_and_can_be_cleared(page):
    setting(page, temperature=0, max_tokens=8)
    ask(page, "My name is Ada.")
    expect(page.locator(ANSWERED)).to_have_count(1)
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "What is my name?")
    expect(page.locator(ANSWERED)).to_have_count(2)
    page.click("#clear")

    assert [each["role"] for each in asked.value.post_data_json["messages"]] == ["user", "assistant", "user"]
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#welcome")).to_be_visible()


def test_every_control_is_sent_and_nothing_else(page):
    wanted = {
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.05,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "top_k": 20,
        "seed": 7,
        "max_tokens": 5,
        "top_logprobs": 3,
    }
    setting(page, **wanted, system="Be brief.", stop="one\ntwo")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    page.click("#sampling button[type=reset]")
    with page.expect_request("**/v1/chat/completions") as plain:
        ask(page)

    body = asked.value.post_data_json
    assert {name: body[name] for name in wanted} == wanted
    assert (body["stop"], body["messages"][0]) == (["one", "two"], {"role": "system", "content": "Be brief."})
    left = set(plain.value.post_data_json) - {"messages", "stream", "stream_options", "model"}
    assert left == {"max_tokens", "logprobs", "top_logprobs"}


def test_a_control_out_of_its_range_sends_nothing(page):
    setting(page, temperature=3)
    ask(page)

    assert page.evaluate("document.querySelector('[name=temperature]').validity.rangeOverflow")
    expect(page.locator(".message")).to_have_count(0)


def test_a_token_shows_what_else_was_likely(page):
    setting(page, temperature=0, max_tokens=12)
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    show_tokens(page)
    tokens, shown = page.locator(f"{ANSWERED} .token"), page.locator("#alternatives")
    tokens.nth(2).hover()

    expect(shown).to_be_visible()
    shares = [float(text.removesuffix(" %").removeprefix("< ")) for text in shown.locator("td.number").all_text_contents()]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100.5
    # Greedy: the likeliest is the one that was taken.
    assert shown.locator("tr").first.get_attribute("class") == "chosen"
    page.mouse.move(5, 5)
    expect(shown).to_be_hidden()


def test_tokens_are_reached_by_keyboard(page):
    setting(page, temperature=0, max_tokens=12)
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    show_tokens(page)
    tokens, shown = page.locator(f"{ANSWERED} .token"), page.locator("#alternatives")
    tokens.first.focus()
    page.keyboard.press("ArrowRight")

    expect(tokens.nth(1)).to_be_focused()
    expect(shown).to_be_visible()
    page.keyboard.press("Escape")
    expect(shown).to_be_hidden()


def test_an_answer_can_be_stopped_and_its_request_ends_with_it(server, page):
    setting(page, max_tokens=1500, temperature=0)
    ask(page, "Write a very long story about a lighthouse keeper and her cat.")
    expect(page.locator(".token").nth(5)).to_be_attached()
    page.click("#stop")

    expect(page.locator(".message.assistant")).to_have_attribute("data-state", "stopped")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator(".numbers")).to_contain_text("stopped")
    server.wait_idle(10)


def test_escape_stops_too(server, page):
    setting(page, max_tokens=1500, temperature=0)
    ask(page, "Write a very long story about a lighthouse keeper and her cat.")
    expect(page.locator(".token").nth(2)).to_be_attached()
    page.keyboard.press("Escape")

    expect(page.locator(".message.assistant")).to_have_attribute("data-state", "stopped")
    server.wait_idle(10)


def test_an_error_is_told_in_the_server_s_words(page):
    setting(page, stop="1\n2\n3\n4\n5")
    ask(page)

    expect(page.get_by_role("alert")).to_contain_text("stop")
    expect(page.get_by_role("alert")).to_contain_text("400")
    setting(page, stop="", max_tokens=4)
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()


def test_an_answer_can_be_copied(page):
    setting(page, temperature=0, max_tokens=12)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    page.click(f"{ANSWERED} >> text=Copy")

    expect(page.locator(ANSWERED).get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator(f"{ANSWERED} .tokens").text_content()


def test_an_answer_can_be_copied_where_the_browser_has_no_clipboard_api(page):
    """As on a page that another machine sent over plain HTTP."""
    setting(page, temperature=0, max_tokens=12)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    page.click(f"{ANSWERED} >> text=Copy")
    expect(page.locator(ANSWERED).get_by_role("button", name="Copied")).to_be_visible()
    page.focus("#message")
    page.keyboard.press("Control+V")

    assert page.input_value("#message") == page.locator(f"{ANSWERED} .tokens").text_content()


def test_an_answer_is_generated_again_in_place_of_the_latest(page):
    setting(page, temperature=0, max_tokens=8)
    ask(page, "My name is Ada.")
    expect(page.locator(ANSWERED)).to_have_count(1)
    ask(page, "What is my name?")
    expect(page.locator(ANSWERED)).to_have_count(2)
    setting(page, max_tokens=4)
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(ANSWERED)).to_have_count(2)
    with page.expect_request("**/v1/chat/completions") as next_one:
        ask(page, "Thank you.")

    body = asked.value.post_data_json
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "user"]
    assert (body["messages"][-1]["content"], body["max_tokens"]) == ("What is my name?", 4)
    assert [each["role"] for each in next_one.value.post_data_json["messages"]] == ["user", "assistant"] * 2 + ["user"]


def test_a_failed_request_can_be_sent_again(page):
    setting(page, max_tokens=4)
    page.route("**/v1/chat/completions", lambda route: route.abort(), times=1)
    ask(page)
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("button", name="Regenerate").click()

    expect(page.locator(ANSWERED)).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_request_is_shown_as_code_that_gives_the_same_answer(page, tmp_path):
    setting(page, temperature=0, max_tokens=16, min_p=0.05, top_k=20, system='It\'s a "test" with $HOME,\n世界.', stop="###")
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    answer = page.locator(f"{ANSWERED} .tokens").text_content()
    page.click("#show-code")
    curl = page.locator("#code-text").text_content()
    page.get_by_role("button", name="Python").click()
    python = page.locator("#code-text").text_content()

    of_curl = json.loads(subprocess.run(["bash", "-c", curl], check=True, capture_output=True, timeout=60).stdout)
    of_python = subprocess.run([sys.executable, "-c", python], check=True, capture_output=True, text=True, timeout=60).stdout
    assert of_curl["choices"][0]["message"]["content"] == answer
    assert of_python == f"{answer}\n"


def test_code_has_the_message_that_is_being_written(page):
    page.fill("#message", "A new one.")
    page.click("#show-code")

    expect(page.locator("#code-text")).to_contain_text('"content": "A new one."')
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#code-dialog")).to_be_hidden()


def test_tokens_are_neither_shown_nor_shaded_until_that_is_wanted(page):
    setting(page, max_tokens=4)
    ask(page)
    expect(page.locator(ANSWERED)).to_have_attribute("data-shade", "false")
    expect(page.locator(".token").first).to_be_hidden()
    page.check("[name=shade]")
    page.get_by_role("button", name="Regenerate").click()

    expect(page.locator(ANSWERED)).to_have_attribute("data-shade", "true")
    expect(page.locator(".token").first).to_be_visible()


def test_a_broken_connection_is_told(server, page):
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page)

    expect(page.get_by_role("alert")).to_contain_text("does not answer")


@pytest.mark.parametrize("with_tokens", [True, False])
def test_html_of_a_model_is_shown_as_text(page, with_tokens):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script><b>bold</b>"
    tops = [{"token": evil, "logprob": -1}]
    known = {"content": [{"token": evil, "logprob": math.log(0.5), "top_logprobs": tops}]} if with_tokens else None
    mock_answer(page, evil, known)
    ask(page, evil)
    expect(page.locator(ANSWERED)).to_be_visible()
    if with_tokens:
        show_tokens(page)
        page.locator(".token").hover()
        expect(page.locator("#alternatives code").first).to_be_visible()

    assert page.locator(".message :is(.body, .tokens)").all_text_contents() == [evil] * 3
    assert page.locator(".message :is(img, script, b), #alternatives :is(img, script, b)").count() == 0


def test_characters_of_several_tokens_are_whole(page):
    setting(page, temperature=0, max_tokens=40)
    ask(page, "Repeat exactly: 🦙🦙 Grüße, 世界 👩‍👩‍👧")
    expect(page.locator(ANSWERED)).to_be_visible()

    text = page.locator(f"{ANSWERED} .body").text_content()
    assert text
    assert page.locator(f"{ANSWERED} .token").count() > 3
