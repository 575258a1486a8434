"""The images of the documents, of a busy stack; `make console-test SCREENSHOTS=1` keeps them."""

import random
import subprocess
import sys
import threading

import httpx
import pytest
from playwright.sync_api import expect

WIDE = {"width": 1280, "height": 1530}
PHONE = {"width": 390, "height": 844}
TOPICS = ("the sea", "a lighthouse", "winter", "trains", "old maps", "bread", "the moon")


@pytest.fixture(scope="module")
def busy(server):
    """Requests of all sorts, coming and going."""
    over = threading.Event()
    chance = random.Random(7)

    def ask() -> None:
        with httpx.Client(timeout=120) as client:
            while not over.wait(chance.uniform(0.2, 2.5)):
                text = f"Tell me about {chance.choice(TOPICS)}. " + "Please be kind. " * chance.randrange(12)
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": chance.randrange(8, 70)}
                client.post(f"{server.url}/v1/chat/completions", json=body)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    yield server
    over.set()
    for thread in threads:
        thread.join()


def test_overview(busy, visit, images):
    pages = {
        "console.png": visit(busy.url, size=WIDE),
        "console-dark.png": visit(busy.url, size=WIDE, color_scheme="dark"),
        "console-phone.png": visit(busy.url, size=PHONE),
        "console-cache.png": visit(f"{busy.url}/#cache"),
    }
    for page in pages.values():
        expect(page.locator("#request-rows tr").nth(23)).to_be_attached(timeout=180_000)
    # Of a phone, what is below the services.
    pages["console-phone.png"].locator("#load-title").scroll_into_view_if_needed()
    pages["console-phone.png"].locator("#charts").evaluate("charts => charts.scrollIntoView()")
    for name, page in pages.items():
        page.screenshot(path=images / name)

    assert all((images / name).stat().st_size > 20_000 for name in pages)


def test_chat(server, visit, images):
    page = visit(f"{server.url}/#playground")
    for name, value in {"temperature": 0.7, "seed": 11, "max_tokens": 90, "system": "You are a helpful guide."}.items():
        page.fill(f"#sampling [name={name}]", str(value))
    page.fill("#message", "What should I see in Paris in one day?")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant[data-state=done]")).to_be_visible()
    page.get_by_role("button", name="Tokens").click()
    page.locator(".token").nth(14).hover()
    expect(page.locator("#alternatives")).to_be_visible()
    page.screenshot(path=images / "console-chat.png")

    assert (images / "console-chat.png").stat().st_size > 20_000


def test_api_documentation(server, visit, images):
    page = visit(f"{server.url}/docs")
    expect(page.get_by_text("/v1/chat/completions").first).to_be_visible()
    page.screenshot(path=images / "docs-page.png")

    assert (images / "docs-page.png").stat().st_size > 20_000


def test_report_of_a_benchmark(server, visit, images, tmp_path):
    report = tmp_path / "report.html"
    levels = ("--concurrency", "1,4,8", "--num-requests", "16", "--input-len", "32", "--output-len", "24")
    command = [sys.executable, "-m", "tetrad.cli", "bench", "--url", server.url, *levels, "--html", str(report)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    page = visit(report.as_uri(), size={"width": 1280, "height": 1290})
    page.screenshot(path=images / "bench-report.png")

    assert (images / "bench-report.png").stat().st_size > 20_000
