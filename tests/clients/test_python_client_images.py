"""clients/python with images, as docs/clients.md shows it, against a server whose model reads them."""

import subprocess
import sys

import pytest

from tests.documents import ROOT, Page
from tests.e2e.conftest import ONE_TOKENIZER, Server
from tests.pictures import picture
from tests.vision_files import save_vision_model

FLAGS = ("--device", "cpu", "--threads", "1", "--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-gib", "0.05")


@pytest.fixture(scope="module")
def vision_server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llava")
    save_vision_model(directory / "model", "llava")
    server = Server(directory / "log", str(directory / "model"), *FLAGS, *ONE_TOKENIZER)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def test_the_program_of_the_page_asks_about_an_image(vision_server, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(picture(90, 60, form="JPEG"))
    source = Page.of("docs/clients.md").block("photo.jpg", language="python")
    source = source.replace("127.0.0.1:50050", vision_server.grpc_target)
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'clients/python')!r})\n{source}"

    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_the_order_of_images_is_that_of_their_placeholders(vision_server):
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
