"""The console in a real browser: `make console-test`, which finds or installs Chromium and Playwright.

A page that writes to the browser's console, or sends a request to another host, fails its test.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

# Without a browser there is nothing to run; `make console-test` names one, or says that there is none.
CHROMIUM = os.environ.get("TEST_CHROMIUM", "")
collect_ignore_glob = [] if CHROMIUM else ["test_*.py"]

if CHROMIUM:
    from playwright.sync_api import Browser, Page, expect, sync_playwright

    # Two cores serve a model, a browser and other tests.
    expect.set_options(timeout=15_000)

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# The browser's own message about an HTTP error; tests check the page's reaction instead.
_REFUSED = "Failed to load resource: the server responded with a status of"


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: "Browser") -> "Iterator[Callable[..., Page]]":
    """Return an opener of pages, each as a new visitor: `visit(url, size=PHONE, color_scheme="dark")`."""
    contexts, complaints = [], []

    def open_page(url: str, *, size: dict[str, int] = DESKTOP, **options: object) -> "Page":
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: _note_foreign(url, asked.url, complaints))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in complaints if not each.startswith((_REFUSED, "Failed to load resource: net::"))] == []


def _note_foreign(own: str, asked: str, complaints: list[str]) -> None:
    if urlsplit(own).netloc != urlsplit(asked).netloc:
        complaints.append(f"asked another host: {asked}")


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """Return where screenshots go: docs/images if that is wanted (`make console-test SCREENSHOTS=1`), else nowhere to stay."""
    if os.environ.get("TEST_SCREENSHOTS"):
        return Path(__file__).parents[3] / "docs/images"
    return tmp_path_factory.mktemp("images")
