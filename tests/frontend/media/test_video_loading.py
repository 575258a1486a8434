"""Loading videos: files, frames one behind another in a data: URL, and limits of their own."""

import base64

import pytest

from tests.frontend.media.web_server import answer
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.media.items import VIDEO, MediaSource
from tetrad.frontend.media.loader import MediaLoader
from tetrad.services.errors import InvalidRequest
from tetrad.services.models.video_frames import split_frames

LOOPBACK = ("127.0.0.0/8",)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def load(url: str, **settings: object):
    [item] = await MediaLoader(FrontendSettings(**settings)).load([MediaSource(where="here", url=url, modality=VIDEO)])
    return item


async def test_a_file_is_passed_on():
    item = await load(f"data:video/mp4;base64,{encoded(b'film')}")

    assert (item.data, item.media_type, item.modality) == (b"film", "video/mp4", "video")


async def test_frames_become_one_file():
    item = await load(f"data:video/jpeg;base64,{encoded(b'one')},{encoded(b'two')},{encoded(b'three')}")

    assert split_frames(item.data, 3) == ({}, [b"one", b"two", b"three"])
    assert item.media_type == "video/jpeg"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"data:video/jpeg;base64,{encoded(b'one')},", "Failed to load video: it is empty"),
        (f"data:video/jpeg;base64,{encoded(b'one')},!!!!", "Failed to load video: it is not base64"),
        (f"data:video/mp4;base64,{encoded(b'one')},{encoded(b'two')}", "Failed to load video: it is not base64"),
        ("data:video/mp4;base64," + "A" * 2800, r"the video has at least 20\d\d bytes; the limit is 2048 \(max_video_bytes\)"),
        ("data:video/jpeg;base64," + "A" * 2800 + ",AAAA" * 9, r"the video has at least 2\d\d\d bytes; the limit is 2048"),
        ("data:video/jpeg;base64," + "AAAA," * 5000, "the video has 5001 frames; at most 4096 are taken"),
    ],
)
async def test_wrong_videos_are_refused(url, text):
    with pytest.raises(InvalidRequest, match=text) as refused:
        await load(url, max_media_bytes=1024, max_video_bytes=2048)

    assert refused.value.field == "here"


async def test_videos_of_the_web_have_limits_of_their_own(web):
    web.answers["/film.mp4"] = answer(b"x" * 5000, content_type="video/mp4")
    rules = {"allowed_media_domains": ("127.0.0.1",), "allowed_media_networks": LOOPBACK, "max_media_bytes": 1024}

    item = await load(web.url("/film.mp4"), **rules)
    with pytest.raises(InvalidRequest, match="4096"):
        await load(web.url("/film.mp4"), **rules, max_video_bytes=4096)

    assert (len(item.data), item.media_type) == (5000, "video/mp4")
