"""Loading images: base64 in every form that clients send, and files that the operator allows."""

import base64
import os

import pytest

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.loader import MediaLoader
from tetrad.services.errors import InvalidRequest

FILE = b"\x89PNG any bytes"
TEXT = base64.b64encode(FILE).decode()


@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        (f"data:image/png;base64,{TEXT}", "image/png"),
        (f"DATA:image/PNG;charset=x;BASE64,{TEXT}", "image/png"),
        (f"data:;base64,{TEXT}", ""),
        (f"data:image/png;base64,{TEXT[:8]}\r\n{TEXT[8:]}\n", "image/png"),
        (f"data:image/p\nng;base64,{TEXT}", ""),
    ],
)
async def test_data_urls_are_decoded(load, url, media_type):
    item = await load(url)

    assert (item.data, item.media_type, item.where) == (FILE, media_type, "here")


async def test_of_a_long_media_type_only_the_start_is_passed_on():
    source = MediaSource(where="here", base64=TEXT, media_type="image/" + "x" * 100_000)

    [item] = await MediaLoader(FrontendSettings()).load([source])

    assert item.media_type == "image/" + "x" * 58


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("data:image/png,abc", "Only base64 data URLs are supported for now."),
        ("data:image/png;base64", "has no comma in its first 256 characters"),
        ("data:" + "x" * 1000 + ";base64,AAAA", "has no comma in its first 256 characters"),
        ("data:image/png;base64,", "it is empty"),
        ("data:image/png;base64,a", "it is not base64"),
        ("data:image/png;base64,!!!!", "it is not base64"),
        ("data:image/png;base64,AAAÄ", "it is not base64"),
        ("data:image/png;base64,AAAA\ud800", "it is not base64"),
        ("data:image/png;base64," + "A" * 1400, r"has at least 10\d\d bytes; the limit is 1024 \(max_media_bytes\)"),
    ],
)
async def test_wrong_data_urls_are_refused(load, url, text):
    with pytest.raises(InvalidRequest, match=text) as refused:
        await load(url, max_media_bytes=1024)

    assert refused.value.field == "here"


async def test_a_large_file_is_decoded_in_slices(load):
    data = os.urandom(3_000_001)

    assert (await load(f"data:;base64,{base64.b64encode(data).decode()}")).data == data


async def test_line_breaks_do_not_count_as_bytes_of_the_file(load):
    data = os.urandom(3000)
    text = base64.encodebytes(data).decode().replace("\n", "\r\n")

    assert (await load(f"data:;base64,{text}", max_media_bytes=3000)).data == data
    with pytest.raises(InvalidRequest, match=r"the image has at least 3000 bytes; the limit is 2999 \(max_media_bytes\)"):
        await load(f"data:;base64,{text}", max_media_bytes=2999)


async def test_the_files_of_a_request_keep_their_order_and_fit_one_message():
    sources = [MediaSource(where=str(place), data=bytes([place]) * 400_000) for place in range(3)]

    items = await MediaLoader(FrontendSettings(max_message_bytes=2 << 20)).load(sources)
    with pytest.raises(InvalidRequest, match=r"have at least 1200000 bytes together; the limit is 1048576 \(max_message_bytes"):
        await MediaLoader(FrontendSettings(max_message_bytes=1 << 20)).load(sources)

    assert [item.data[0] for item in items] == [0, 1, 2]


async def test_names_of_images_are_apart_for_each_cache_salt():
    loader = MediaLoader(FrontendSettings())
    source = MediaSource(where="here", data=FILE, uuid="cat")

    names = [(await loader.load([source], salt))[0].uuid for salt in ("", "a", "b", "a")]

    assert names[0] == "cat"
    assert names[1] == names[3]
    assert len(set(names)) == 3


async def test_a_name_alone_is_passed_on_without_a_file():
    [item] = await MediaLoader(FrontendSettings()).load([MediaSource(where="here", uuid="cat")])

    assert (item.data, item.uuid) == (b"", "cat")


class TestLocalFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        allowed = tmp_path / "allowed"
        allowed.mkdir()
        (allowed / "a b.png").write_bytes(FILE)
        (tmp_path / "secret").write_bytes(b"secret")
        return allowed

    async def test_are_refused_without_the_option(self, load, folder):
        with pytest.raises(InvalidRequest, match="Cannot load local files without `--allowed-local-media-path`"):
            await load(f"file://{folder}/a%20b.png")

    @pytest.mark.parametrize("host", ["", "localhost"])
    async def test_are_read_under_the_allowed_directory(self, load, folder, host):
        assert (await load(f"file://{host}{folder}/a%20b.png", allowed_local_media_path=folder)).data == FILE

    @pytest.mark.parametrize("path", ["/../secret", "/%2e%2e/secret", "/link", "/folder/secret"])
    async def test_outside_of_it_are_refused(self, load, folder, path):
        (folder / "link").symlink_to("../secret")
        (folder / "folder").symlink_to("..")

        with pytest.raises(InvalidRequest, match="must be a subpath of `--allowed-local-media-path`"):
            await load(f"file://{folder}{path}", allowed_local_media_path=folder)

    async def test_may_be_links_inside_of_it(self, load, folder):
        (folder / "link").symlink_to("a b.png")

        assert (await load(f"file://{folder}/link", allowed_local_media_path=folder)).data == FILE

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("missing.png", "No such file or directory"),
            ("", "is no regular file"),
            ("pipe", "is no regular file"),
            ("a%00b", "it is no path"),
            ("loop/a.png", "it is no path"),
            ("large", r"has at least 5000 bytes; the limit is 1024 \(max_media_bytes\)"),
        ],
    )
    async def test_that_cannot_be_read_are_refused_with_the_reason(self, load, folder, name, text):
        os.mkfifo(folder / "pipe")
        (folder / "loop").symlink_to("loop")
        (folder / "large").write_bytes(bytes(5000))

        with pytest.raises(InvalidRequest, match=text):
            await load(f"file://{folder}/{name}", allowed_local_media_path=folder, max_media_bytes=1024)

    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("file://[x", r"the URL 'file://\[x' is wrong: Invalid IPv6 URL\.$"),
            ("file:///" + "x" * 9000, "the URL has 9008 characters; at most 8192 are taken"),
        ],
    )
    async def test_of_wrong_urls_are_refused(self, load, folder, url, text):
        with pytest.raises(InvalidRequest, match=text):
            await load(url, allowed_local_media_path=folder)

    async def test_of_other_hosts_are_refused(self, load, folder):
        with pytest.raises(InvalidRequest, match="a file: URL has no host, or localhost, got 'other'"):
            await load(f"file://other{folder}/a%20b.png", allowed_local_media_path=folder)
