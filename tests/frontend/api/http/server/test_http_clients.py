"""HTTP clients of several languages, with default settings: curl, the JDK, Node, Go and Python. Skips missing ones.

`make clients-test` installs missing ones and runs them all.
"""

import asyncio
import http.client
import json
import shutil
import urllib.request
from pathlib import Path

import httpx
import pytest
import requests

from tests.frontend.fakes import TEXT

CLIENTS = Path(__file__).parent / "clients"
JSON = {"Content-Type": "application/json"}
CURL = ["curl", "--silent", "--show-error", "--write-out", "\n%{http_code}\n", "--header", "Content-Type: application/json"]
BODY = {"prompt": "hi", "max_tokens": 9}
BODIES = {
    "small": BODY,
    # From 1 MiB on curl sends "Expect: 100-continue"; and the body takes many packets.
    "large": BODY | {"user": "x" * (2 << 20)},
    "stream": BODY | {"stream": True},
}


@pytest.fixture
def files(tmp_path):
    """Return the bodies' files."""
    for name, body in BODIES.items():
        (tmp_path / name).write_text(json.dumps(body))
    return [str(tmp_path / name) for name in BODIES]


async def output_of(*command):
    """Return a program's output."""
    needed = "javac" if command[0] == "java" else command[0]  # a file of source needs the compiler
    if shutil.which(needed) is None:
        pytest.skip(f"{needed} is not installed")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(120):
        printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return printed.decode()


def text_of(answer):
    """Return the text of an answer, streamed or whole."""
    data = answer.strip()
    if not data.startswith("data: "):
        return json.loads(data)["choices"][0]["text"]
    chunks = [json.loads(each) for each in data.removeprefix("data: ").removesuffix("data: [DONE]").split("data: ") if each]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


def url_of(frontend):
    return f"http://127.0.0.1:{frontend.port}/v1/completions"


@pytest.mark.parametrize(
    ("command", "times"),
    [
        (["java", str(CLIENTS / "Client.java")], 1),
        (["node", str(CLIENTS / "client.mjs")], 2),
        (["go", "run", str(CLIENTS / "client.go")], 1),
    ],
    ids=["jdk", "node", "go"],
)
async def test_a_languages_own_client_gets_every_answer(frontend, files, command, times):
    printed = await output_of(*command, url_of(frontend), *files)

    answers = [line.split(" ", 1) for line in printed.splitlines()]
    assert [(status, text_of(answer)) for status, answer in answers] == [("200", TEXT[:9])] * len(BODIES) * times


@pytest.mark.parametrize("way", [[], ["--http2"], ["--http1.0"], ["--header", "Transfer-Encoding: chunked"]], ids=" ".join)
async def test_curl_gets_every_answer(frontend, files, way):
    for file in files:
        printed = await output_of(*CURL, *way, "--data-binary", f"@{file}", url_of(frontend))

        answer, status = printed.strip().rsplit("\n", 1)
        assert (status, text_of(answer)) == ("200", TEXT[:9])


async def test_curl_reads_the_head_alone(frontend):
    printed = await output_of("curl", "--silent", "--head", f"http://127.0.0.1:{frontend.port}/health")

    assert printed.startswith("HTTP/1.1 200 OK")


def by_http_client(url, body):
    connection = http.client.HTTPConnection(url.split("/")[2])
    connection.request("POST", "/v1/completions", body, JSON)
    response = connection.getresponse()
    status, answer = response.status, response.read().decode()
    connection.close()
    return status, answer


def by_urllib(url, body):
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), JSON)) as response:
        return response.status, response.read().decode()


def by_requests(url, body):
    with requests.post(url, body, headers=JSON) as response:
        return response.status_code, response.text


def by_requests_in_chunks(url, body):
    with requests.post(url, iter([body[:5].encode(), body[5:].encode()]), headers=JSON) as response:
        return response.status_code, response.text


def by_httpx(url, body):
    response = httpx.post(url, content=body, headers=JSON)
    return response.status_code, response.text


@pytest.mark.parametrize("post", [by_http_client, by_urllib, by_requests, by_requests_in_chunks, by_httpx])
async def test_pythons_clients_get_every_answer(frontend, post):
    for body in BODIES.values():
        status, answer = await asyncio.to_thread(post, url_of(frontend), json.dumps(body))

        assert (status, text_of(answer)) == (200, TEXT[:9])
