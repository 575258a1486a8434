"""vLLM's helpers for images."""

import base64
import functools
import http.server
import io
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from tetrad.assets import image as assets
from tetrad.multimodal.image import convert_image_mode
from tetrad.multimodal.utils import encode_image_base64, encode_image_url, fetch_image
from tetrad.services.errors import InvalidRequest

EPS = f"data:;base64,{base64.b64encode(b'%!PS-Adobe-3.0 EPSF-3.0').decode()}"
"""A file for which Pillow would start Ghostscript."""
VALUES = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)


def test_what_is_transparent_becomes_white():
    values = VALUES.copy()
    values[:, :3, 3], values[:, 3:, 3] = 0, 255

    made = np.asarray(convert_image_mode(Image.fromarray(values), "RGB"))

    assert np.all(made[:, :3] == 255)
    assert np.array_equal(made[:, 3:], values[:, 3:, :3])


def test_other_modes_are_converted_as_pil_does():
    image = Image.fromarray(VALUES[:, :, :3])

    assert convert_image_mode(image, "RGB") is image
    assert convert_image_mode(image, "L") == image.convert("L")


def test_an_image_is_encoded_as_a_file_in_base64():
    image = Image.fromarray(VALUES[:, :, :3])

    assert Image.open(io.BytesIO(base64.b64decode(encode_image_base64(image)))).convert("RGB") == image
    assert encode_image_url(image, format="JPEG").startswith("data:image/jpeg;base64,/9j/")


@pytest.fixture
def photo(tmp_path) -> Image.Image:
    """Return a photograph that is stored turned, in the file photo.jpg."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    image = Image.fromarray(VALUES[:, :, :3])
    image.save(tmp_path / "photo.jpg", exif=exif, quality=100)
    return Image.open(tmp_path / "photo.jpg").convert("RGB").rotate(-90, expand=True)


@pytest.fixture
def web(tmp_path):
    """Return the URL of a server with the files of the directory."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_image_is_fetched_by_its_url_and_is_upright(photo, web, tmp_path, monkeypatch):
    data = base64.b64encode((tmp_path / "photo.jpg").read_bytes()).decode()
    monkeypatch.setattr(assets, "BASE_URL", web)

    for url in (f"{web}/photo.jpg", (tmp_path / "photo.jpg").as_uri(), f"data:image/jpeg;base64,{data}"):
        assert fetch_image(url).tobytes() == photo.tobytes()
    assert assets.ImageAsset("photo").pil_image.size == photo.size


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("data:;base64,AAAA", "Failed to load image"),
        (EPS, "Failed to load image: cannot identify image file"),
        ("ftp://a/b", "must be either a HTTP, data or file URL"),
    ],
)
def test_what_is_no_image_is_refused(url, text):
    with pytest.raises(InvalidRequest, match=text):
        fetch_image(url)


def test_settings_of_a_frontend_in_the_environment_do_not_stop_the_import():
    environment = {**os.environ, "TETRAD_FRONTEND_MAX_N": "none"}

    subprocess.run([sys.executable, "-c", "import tetrad.multimodal.utils"], env=environment, check=True, timeout=60)


def test_damaged_exif_leaves_an_image_as_it_is():
    file = io.BytesIO()
    Image.new("RGB", (2, 1)).save(file, "PNG", exif=b"Exif\0\0no block of EXIF")

    assert fetch_image(f"data:;base64,{base64.b64encode(file.getvalue()).decode()}").size == (2, 1)
