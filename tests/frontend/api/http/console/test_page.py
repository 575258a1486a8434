"""The console's files: which are served, access to them, and the page's content security policy."""

import hashlib
import json
import re
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[5] / "frontend/api/http/console/static"
VENDOR = STATIC / "vendor"
TYPES = (".html", ".css", ".js", ".svg")
FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.suffix in TYPES)
SCRIPTS = sorted(STATIC.glob("*.js"))
PATHS = ["/", *(f"/console/static/{name}" for name in FILES)]
OUTSIDE = [
    "../assets.py",
    "..%2fassets.py",
    "%2e%2e/assets.py",
    "..%5cassets.py",
    "....//assets.py",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "index.html/",
    "index.html%00.js",
    "",
    "nothing.js",
    "vendor/libraries.json",
    "vendor/../../assets.py",
]


async def test_the_page_runs_its_own_scripts_and_calls_its_own_server_only(http):
    policy = (await http.get("/")).headers["content-security-policy"]
    directives = dict(each.strip().split(" ", 1) for each in policy.split(";"))

    assert directives == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' blob:",
        "media-src": "blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


@pytest.mark.parametrize("path", PATHS)
async def test_every_file_has_its_type_its_policy_and_is_sent_once(http, path):
    first = await http.get(path)
    again = await http.get(path, headers={"if-none-match": first.headers["etag"]})
    other = await http.get(path, headers={"if-none-match": '"another"'})

    assert (first.status_code, again.status_code, other.status_code) == (200, 304, 200)
    assert first.headers["content-type"].split(";")[0] in ("text/html", "text/css", "text/javascript", "image/svg+xml")
    assert (first.headers["x-content-type-options"], first.headers["cache-control"]) == ("nosniff", "no-cache")
    assert "default-src 'none'" in first.headers["content-security-policy"]
    assert again.content == b""


@pytest.mark.parametrize("name", OUTSIDE)
async def test_no_name_leads_out_of_the_folder(frontend, http, name):
    # As written: a client would tidy the path up first.
    response = await http.send(http.build_request("GET", f"http://127.0.0.1:{frontend.port}/console/static/{name}"))
    raw = await http.request("GET", "/", extensions={"target": f"/console/static/{name}".encode()})

    assert (response.status_code, raw.status_code) == (404, 404)


def test_the_page_has_no_inline_script_style_or_handler():
    page = (STATIC / "index.html").read_text()

    assert re.findall(r"<script\b(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style\b|\sstyle\s*=|\son[a-z]+\s*=|javascript:", page) == []


def test_everything_the_page_names_is_there():
    page = (STATIC / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="console/static/([^"]+)"', page))
    named |= {name for path in SCRIPTS for name in re.findall(r'(?:from|import) "\./([^"]+)"', path.read_text())}

    # The page itself is served at /.
    assert named == set(FILES) - {"index.html"}


def test_libraries_of_other_projects_are_the_pinned_ones_and_have_their_licences():
    libraries = json.loads((VENDOR / "libraries.json").read_text())
    pinned = {}
    for library in libraries:
        for name, digest in library["files"].items():
            base = name.rpartition("/")[2]
            pinned[f"{library['package']}.{base}" if base.startswith("LICENSE") else base] = digest
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir() if path.suffix != ".json"}

    assert found == pinned
    assert all(f"{library['package']}.LICENSE" in found for library in libraries)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_make_no_markup_of_texts_and_call_no_other_host(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")

    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser", text) == []
    assert re.findall(r"https?://|\bwss?://", text) == []


async def test_where_keys_are_needed_the_page_loads_and_its_data_do_not(serve_frontend):
    async with serve_frontend(api_key=("secret",)) as frontend:
        pages = [(await frontend.http.get(path)).status_code for path in PATHS]
        closed = await frontend.http.get("/console/events")
        beside = [(await frontend.http.get(path)).status_code for path in ("/console", "/console/", "/console/static")]

    assert set(pages) == {200}
    assert (closed.status_code, closed.json()["error"]["code"]) == (401, "invalid_api_key")
    assert beside == [401, 401, 401]


async def test_it_can_be_switched_off(serve_frontend):
    async with serve_frontend(console=False) as frontend:
        found = {(await frontend.http.get(path)).status_code for path in [*PATHS, "/console/events"]}

    assert found == {404}
