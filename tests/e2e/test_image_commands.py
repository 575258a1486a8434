"""Images in commands of the command line and in clients/python, against a server whose model reads them."""

import base64
import json
import subprocess
import sys

import httpx
import pytest

from tests.documents import ROOT, Page
from tests.e2e.conftest import ONE_TOKENIZER, Server
from tests.pictures import picture
from tests.tetrad.cli.commands import tetrad
from tests.vision_files import save_vision_model

FLAGS = ("--device", "cpu", "--threads", "1", "--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-gib", "0.05")
IMAGE = picture(90, 60)
URL = f"data:image/png;base64,{base64.b64encode(IMAGE).decode()}"
MESSAGES = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "What is it?"}]}
]
BODY = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    (path / "photo.png").write_bytes(IMAGE)
    return path


@pytest.fixture(scope="module")
def vision_server(tmp_path_factory, files):
    directory = tmp_path_factory.mktemp("llava")
    save_vision_model(directory / "model", "llava")
    limits = ("--limit-mm-per-prompt", '{"image": 2}', "--allowed-local-media-path", str(files))
    server = Server(
        directory / "log", str(directory / "model"), *FLAGS, *ONE_TOKENIZER, *limits, "--served-model-name", "llava"
    )
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def answer(vision_server) -> str:
    """The server's answer about the image."""
    made = httpx.post(f"{vision_server.url}/v1/chat/completions", json=BODY, timeout=60).json()
    return made["choices"][0]["message"]["content"]


def test_a_chat_attaches_a_file(vision_server, files, answer):
    flags = ("chat", "--url", vision_server.url, "--max-tokens", "8", "--temperature", "0")

    quick = tetrad(*flags, "--image", str(files / "photo.png"), "-q", "What is it?")
    command = [sys.executable, "-m", "tetrad.cli", *flags]
    typed = subprocess.run(
        command, input=f"/image {files / 'photo.png'}\nWhat is it?\n", capture_output=True, text=True, timeout=120
    )

    assert quick.stdout == f"{answer}\n", quick.stderr
    assert typed.stdout == f"Attached to the next message: photo.png\n{answer}\n", typed.stderr


def test_a_chat_names_a_file_that_is_no_image(vision_server, tmp_path):
    (tmp_path / "notes.txt").write_text("text")

    result = tetrad("chat", "--url", vision_server.url, "--image", str(tmp_path / "notes.txt"), "-q", "x")

    assert result.returncode != 0
    assert "is not an image in the format PNG" in result.stderr


def test_a_batch_has_images_in_its_bodies(vision_server, files, answer, tmp_path):
    by_file = [{"type": "image_url", "image_url": {"url": (files / "photo.png").as_uri()}}, MESSAGES[0]["content"][1]]
    bodies = [BODY, BODY | {"messages": [{"role": "user", "content": by_file}]}]
    lines = [
        {"custom_id": str(place), "method": "POST", "url": "/v1/chat/completions", "body": {"model": "llava", **body}}
        for place, body in enumerate(bodies)
    ]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    ran = tetrad("run-batch", "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--url", vision_server.url)

    assert ran.returncode == 0, ran.stderr
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["response"]["body"]["choices"][0]["message"]["content"] for each in results] == [answer] * 2


def test_a_benchmark_sends_images(vision_server, tmp_path):
    flags = ("--num-requests", "4", "--concurrency", "2", "--input-len", "4", "--output-len", "3", "--image-size", "40x30")

    ran = tetrad("bench", "--url", vision_server.url, "--dataset-name", "random-mm", *flags, "--json", str(tmp_path / "out"))

    assert ran.returncode == 0, ran.stderr
    [level] = json.loads((tmp_path / "out").read_text())["levels"]
    figures = level["servers"][0] if "servers" in level else level
    assert json.dumps(figures).count('"completed": 4') == 1


def test_the_program_of_the_client_s_page_asks_about_an_image(vision_server, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(picture(90, 60, form="JPEG"))
    source = Page.of("docs/clients.md").block("photo.jpg", language="python")
    source = source.replace("127.0.0.1:50050", vision_server.grpc_target)
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'clients/python')!r})\n{source}"

    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_the_order_of_the_client_s_images_is_that_of_their_placeholders(vision_server):
    first, second = picture(90, 60, seed=1), picture(90, 60, seed=2)
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "clients/python")!r})
from tetrad_client import Client

with Client({vision_server.grpc_target!r}) as client:
    for images in ([{first!r}, {second!r}], [{second!r}, {first!r}]):
        deltas = client.generate("<image> or <image>?", images=images, max_tokens=6, temperature=0)
        print([token for delta in deltas for token in delta.token_ids])
"""

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, ran.stderr
    one, other = ran.stdout.splitlines()
    assert one != other
