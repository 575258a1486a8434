"""docs/vllm.md has every argument and method of vLLM's classes, with its verdict."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIGNATURES = json.loads((Path(__file__).parent / "vllm_signatures.json").read_text())


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("vllm_page", ROOT / "tools" / "vllm_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_signatures_say(tool):
    assert (ROOT / "docs" / "vllm.md").read_text() == tool.page(), "python tools/vllm_page.py > docs/vllm.md"


@pytest.mark.parametrize("name", ["LLM", "LLMEngine", "AsyncLLM", "EngineArgs", "SamplingParams"])
def test_the_page_names_every_method_and_argument(name):
    page = (ROOT / "docs" / "vllm.md").read_text()
    part = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    constructor = SIGNATURES[name]["__init__"]
    arguments = [] if "`__init__()` | not there" in part else constructor

    assert [each for each in arguments if f"| `{each}` |" not in part] == []
    assert [each for each in SIGNATURES[name] if f"`{each}" not in part and each != "__init__"] == []


def test_an_argument_that_nobody_knows_is_found(tool):
    with pytest.raises(LookupError, match=r"LLM\(colour=...\) of vLLM has no verdict"):
        list(tool._rows("LLM", tool._CLASSES["LLM"], {"__init__": {"colour": None}}))
    with pytest.raises(LookupError, match=r"LLM.sing of vLLM is neither in Tetrad nor refused"):
        list(tool._rows("LLM", tool._CLASSES["LLM"], {"sing": {}}))
