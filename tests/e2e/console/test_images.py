"""Images, audio and videos in the playground: chosen, dropped, pasted, removed, sent and shown as code. The model's answer is a
fixed one.
"""

import base64
import json

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.console.chat import ANSWERED, ask, mock_answer
from tests.sounds import encoded, samples
from tetrad.library.png import png_of

SOUND = encoded(samples(0.5, seed=1), codec="pcm_s16le")
RED, BLUE = png_of(b"\xd0\x20\x20" * 19200, 160, 120, 3), png_of(b"\x20\x40\xd0" * 10800, 90, 120, 3)
TILE = "#attachments .tile img"


def url_of(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


@pytest.fixture
def page(server, visit) -> Page:
    """The playground of a model that reads images."""
    return playground(server, visit, "image")


def playground(server, visit, *modalities: str) -> Page:
    page = visit(server.url)
    models = httpx.get(f"{server.url}/v1/models").json()
    models["data"][0]["input_modalities"] = ["text", *modalities]
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    page.click("text=Playground")
    expect(page.locator("#attach")).to_be_visible()
    mock_answer(page, "A red rectangle.")
    return page


def choose(page: Page, *files: tuple[str, bytes]) -> None:
    before = page.locator(TILE).count()
    page.set_input_files("#files", [{"name": name, "mimeType": "image/png", "buffer": data} for name, data in files])
    expect(page.locator(TILE)).to_have_count(before + len(files))


def hand_over(page: Page, target: str, event: str, name: str, kind: str, data: bytes) -> None:
    """Let an element receive an event that carries a file: "drop" or "paste"."""
    page.evaluate(
        """([target, event, name, kind, bytes]) => {
            const carrier = new DataTransfer();
            carrier.items.add(new File([new Uint8Array(bytes)], name, {type: kind}));
            const options = {bubbles: true, cancelable: true};
            const made = event === "paste" ? new ClipboardEvent(event, {...options, clipboardData: carrier})
                                           : new DragEvent(event, {...options, dataTransfer: carrier});
            document.querySelector(target).dispatchEvent(made);
        }""",
        [target, event, name, kind, list(data)],
    )


def test_images_are_sent_before_the_text_of_their_message_and_stay_in_the_conversation(page):
    choose(page, ("red.png", RED))
    choose(page, ("blue.png", BLUE))
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "What is it?")
    expect(page.locator(ANSWERED)).to_have_count(1)
    with page.expect_request("**/v1/chat/completions") as later:
        ask(page, "And now?")

    pictures = [{"type": "image_url", "image_url": {"url": url_of(data)}} for data in (RED, BLUE)]
    [first] = asked.value.post_data_json["messages"]
    assert first == {"role": "user", "content": [*pictures, {"type": "text", "text": "What is it?"}]}
    assert later.value.post_data_json["messages"][0] == first
    assert later.value.post_data_json["messages"][2] == {"role": "user", "content": "And now?"}
    expect(page.locator(TILE)).to_have_count(0)
    shown = page.locator(".message.user img")
    assert [shown.nth(place).get_attribute("alt") for place in (0, 1)] == ["red.png", "blue.png"]
    assert shown.first.evaluate("image => image.naturalWidth") == 160


def test_an_image_may_be_sent_without_a_text(page):
    choose(page, ("red.png", RED))
    with page.expect_request("**/v1/chat/completions") as asked:
        page.click("#send")

    [part] = asked.value.post_data_json["messages"][0]["content"]
    assert part["image_url"]["url"] == url_of(RED)


@pytest.mark.parametrize(("target", "event"), [("#messages", "drop"), ("#message", "paste")])
def test_an_image_is_dropped_or_pasted(page, target, event):
    hand_over(page, target, event, "red.png", "image/png", RED)

    expect(page.locator(TILE)).to_have_count(1)
    assert page.input_value("#message") == ""


def test_a_file_that_is_no_image_is_refused_by_its_name(page):
    hand_over(page, "#messages", "drop", "notes.txt", "text/plain", b"text")

    expect(page.get_by_role("alert")).to_have_text("notes.txt is not an image.")
    expect(page.locator(TILE)).to_have_count(0)


def test_an_attached_image_can_be_removed(page):
    choose(page, ("red.png", RED), ("blue.png", BLUE))
    page.get_by_role("button", name="Remove red.png").click()
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "What is it?")

    assert [part["type"] for part in asked.value.post_data_json["messages"][0]["content"]] == ["image_url", "text"]
    assert url_of(BLUE) in json.dumps(asked.value.post_data_json)


def test_code_names_images_instead_of_their_base64(page):
    choose(page, ("red.png", RED), ("blue.png", BLUE))
    page.fill("#message", "What is it?")
    page.click("#show-code")

    expect(page.locator("#code-text")).to_contain_text('"url": "data:image/png;base64,IMAGE_2"')
    expect(page.locator("#code-note")).to_have_text("IMAGE_1 to IMAGE_2 stand for your images in base64.")
    assert base64.b64encode(RED).decode() not in page.locator("#code-text").text_content()


def test_a_model_that_reads_them_is_sent_audio_and_videos(server, visit):
    page = playground(server, visit, "image", "audio", "video")
    files = [("a.wav", "audio/wav", SOUND), ("b.webm", "video/webm", b"not played"), ("c.png", "image/png", RED)]
    page.set_input_files("#files", [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files])
    expect(page.locator("#attachments .tile")).to_have_count(3)
    page.fill("#message", "What is it?")
    page.click("#show-code")
    expect(page.locator("#code-note")).to_have_text(
        " ".join(f"{kind.upper()}_1 stands for your {kind} in base64." for kind in ("audio", "video", "image"))
    )
    page.keyboard.press("Escape")

    with page.expect_request("**/v1/chat/completions") as asked:
        page.click("#send")

    [message] = asked.value.post_data_json["messages"]
    parts = [
        (f"{kind.partition('/')[0]}_url", f"data:{kind};base64,{base64.b64encode(data).decode()}") for _, kind, data in files
    ]
    assert message["content"] == [{"type": kind, kind: {"url": url}} for kind, url in parts] + [
        {"type": "text", "text": "What is it?"}
    ]
    sound = page.locator(".message.user audio")
    expect(sound).to_have_attribute("title", "a.wav")
    page.wait_for_function("document.querySelector('.message.user audio').duration > 0.4")
    assert page.get_attribute("#attach", "title") == "Attach images, audio and videos; they may be dropped or pasted, too"


def test_a_file_of_a_kind_that_the_model_does_not_read_is_refused(server, visit):
    page = playground(server, visit, "image", "video")
    hand_over(page, "#messages", "drop", "a.wav", "audio/wav", SOUND)

    expect(page.get_by_role("alert")).to_have_text("a.wav is not an image or a video.")


def test_a_model_of_texts_is_sent_no_images(server, visit):
    page = visit(f"{server.url}/#playground")
    expect(page.locator("#message")).to_be_focused()
    hand_over(page, "#messages", "drop", "red.png", "image/png", RED)

    expect(page.get_by_role("alert")).to_have_text("The model reads no images.")
    expect(page.locator("#attach")).to_be_hidden()
    expect(page.locator(TILE)).to_have_count(0)
