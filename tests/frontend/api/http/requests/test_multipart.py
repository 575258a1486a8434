"""Multipart: splits forms by RFC 7578, and refuses malformed ones."""

import random

import httpx
import pytest

from tetrad.frontend.api.http.requests.multipart import boundary_of, split_form
from tetrad.frontend.api.http.schemas.errors import UnsupportedMediaType
from tetrad.services.errors import InvalidRequest

B = b"xyz"
FILE_HEAD = b'; filename="f.wav"\r\nContent-Type: audio/wav'
HEAD = b'Content-Disposition: form-data; name="a"'


def form(*parts, end=b"--xyz--\r\n"):
    return b"".join(b"--xyz\r\n%b\r\n" % part for part in parts) + end


def found(body):
    return [(part.name, part.filename, part.media_type, part.data) for part in split_form(body, B)]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (form(HEAD + b"\r\n\r\nvalue"), [("a", None, "", b"value")]),
        (form(HEAD + b"\r\n\r\n"), [("a", None, "", b"")]),
        (form(HEAD + FILE_HEAD + b"\r\n\r\n\x00\r\n\xff"), [("a", "f.wav", "audio/wav", b"\x00\r\n\xff")]),
        (form(HEAD + b"\r\n\r\n--xy\r\n--xy"), [("a", None, "", b"--xy\r\n--xy")]),
        (b"preamble\r\n" + form(HEAD + b"\r\n\r\nvalue") + b"epilogue", [("a", None, "", b"value")]),
        (form(HEAD + b"\r\n\r\n1").replace(b"--xyz\r\n", b"--xyz \t\r\n"), [("a", None, "", b"1")]),
        (
            form(b"content-disposition: form-data; name=a\r\n\r\n1", HEAD + b"\r\n\r\n2"),
            [("a", None, "", b"1"), ("a", None, "", b"2")],
        ),
        (form(b"Content-Disposition: form-data; name=a; filename*=utf-8''%C3%A4\r\n\r\n1"), [("a", "ä", "", b"1")]),
        (b"--xyz--\r\n", []),
    ],
    ids=["text", "empty", "file", "near boundaries", "around", "padding", "names", "encoded name", "no parts"],
)  # fmt: skip
def test_a_form_is_split(body, parts):
    assert found(body) == parts


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The form has no part: its boundary is not in the body."),
        (b"--xyz", "The form ends inside a part"),
        (form(HEAD + b"\r\n\r\n1", end=b""), "The form ends inside a part"),
        (form(b"\r\n1"), "A part of the form has no name"),
        (form(b"no headers"), "A part of the form has no headers"),
        (form(b"X: " + b"y" * 9000 + b"\r\n\r\n1"), "A part of the form has no headers, or more than 8192 bytes"),
        (form(b"Content-Disposition: form-data\r\n\r\n1"), "A part of the form has no name"),
        (b"--xyzzy\r\n" + HEAD + b"\r\n\r\n1\r\n--xyz--", "A boundary of the form is followed by b'zy'"),
        (form(HEAD + b"\r\nContent-Transfer-Encoding: base64\r\n\r\nMQ=="), "Content-Transfer-Encoding 'base64' of a part"),
        (form(*[HEAD + b"\r\n\r\n1"] * 129), "The form has more than 128 parts"),
    ],
    ids=["empty", "one line", "no end", "no headers", "one line only", "long", "no name", "longer", "encoding", "many"],
)
def test_what_is_no_form_is_refused(body, message):
    with pytest.raises(InvalidRequest, match=message.replace("'", ".")):
        split_form(body, B)


@pytest.mark.parametrize(
    "header", ["multipart/form-data", "multipart/form-data; boundary=", f"multipart/form-data; boundary={'x' * 71}"]
)
def test_a_boundary_is_needed(header):
    with pytest.raises(InvalidRequest, match="must give a boundary"):
        boundary_of(header)


def test_another_type_is_refused():
    with pytest.raises(UnsupportedMediaType, match="must be multipart/form-data, got 'application/json'"):
        boundary_of("application/json")


def test_httpx_and_this_file_agree():
    data = random.Random(1).randbytes(100_000)
    request = httpx.Request("POST", "http://x/", files={"file": ('a"b.wav', data, "audio/wav")}, data={"model": "ä"})

    parts = split_form(request.read(), boundary_of(request.headers["content-type"]))

    assert [(part.name, part.data) for part in parts] == [("model", "ä".encode()), ("file", data)]


def test_random_bytes_end_in_forms_or_refusals():
    dice = random.Random(2)
    pieces = [b"--xyz", b"--", b"\r\n", HEAD, b"\r\n\r\n", b"a", b"\xff", b"--xyz--", b"--xyz\r\n"]
    for _ in range(3000):
        body = b"".join(dice.choices(pieces, k=dice.randint(1, 12)))
        try:
            split_form(body, B)
        except InvalidRequest:
            continue
