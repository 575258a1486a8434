"""Images over every API of a running server: the same files bring the same answer, which is that of transformers."""

import base64
import io
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import torch
from openai import OpenAI
from PIL import Image

from tests.documents import Page
from tests.e2e.conftest import ONE_TOKENIZER, Server
from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tetrad import LLM, SamplingParams

NUM_TOKENS = 16
TEXT = "What is on this picture?"
PICTURE = picture(120, 80, 7)


@dataclass(frozen=True)
class Stack:
    """A server with a tiny model, and what transformers answers to `TEXT` and `PICTURE`."""

    server: Server
    directory: Path
    prompt: list[int]
    token_strs: list[str]
    text: str
    embeds: dict[str, str]
    tensors: dict[str, torch.Tensor]

    def ask(self, path: str, **body: object) -> httpx.Response:
        return httpx.post(f"{self.server.url}{path}", json={"model": "default", "temperature": 0} | body, timeout=60)


@pytest.fixture(scope="module")
def stack(tmp_path_factory, start_module_server) -> Stack:
    directory = tmp_path_factory.mktemp("model")
    save_vision_model(directory, "qwen2_5_vl")
    (directory / "picture.png").write_bytes(PICTURE)
    reference = VisionReference(directory)
    content = [{"type": "text", "text": TEXT}, {"type": "image"}]
    prepared = reference.prepare([{"role": "user", "content": content}], [PICTURE])
    token_ids = reference.generate(prepared, NUM_TOKENS).token_ids
    tokenizer = reference.processor.tokenizer
    text = tokenizer.decode(token_ids, skip_special_tokens=True)
    flags = [*ONE_TOKENIZER, "--device", "cpu", "--threads", "1", "--max-model-len", "512", "--num-gpu-blocks-override", "200"]
    flags += ["--served-model-name", "default", "--allowed-local-media-path", str(directory)]
    flags += ["--allowed-media-domains", "localhost", "--enable-mm-embeds"]
    server = start_module_server(str(directory), *flags)
    rows, grid = reference.embeddings(prepared), prepared.tensors["image_grid_thw"]
    embeds = {"image_embeds": saved(rows.bfloat16()), "image_grid_thw": saved(grid)}
    token_strs = tokenizer.convert_ids_to_tokens(prepared.token_ids)
    return Stack(server, directory, prepared.token_ids, token_strs, text, embeds, {"embeddings": rows, "grid": grid})


def saved(tensor: torch.Tensor) -> str:
    """Return the base64 of a file of torch.save."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return base64.b64encode(file.getvalue()).decode()


def data_url() -> str:
    return f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"


def chat_body(url: str) -> dict:
    content = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": NUM_TOKENS, "ignore_eos": True}


def test_chat_completions_as_the_page_shows_them(stack, monkeypatch):
    monkeypatch.chdir(stack.directory)
    client = OpenAI(base_url=f"{stack.server.url}/v1", api_key="none")
    names: dict = {"client": client}
    exec(Page.of("docs/requests.md").block("image_url", language="python"), names)
    assert names["answer"].usage.prompt_tokens == len(stack.prompt)

    answer = stack.ask("/v1/chat/completions", **chat_body(data_url())).json()

    assert answer["choices"][0]["message"]["content"] == stack.text
    assert answer["usage"]["prompt_tokens"] == len(stack.prompt)


def test_embeddings_in_place_of_the_picture(stack):
    parts = [{"type": "text", "text": TEXT}, {"type": "image_embeds", "image_embeds": stack.embeds}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": NUM_TOKENS, "ignore_eos": True}
    mixed = [{"role": "user", "content": [*parts, {"type": "image_url", "image_url": {"url": data_url()}}]}]
    wrong = [{"role": "user", "content": [{"type": "image_embeds", "image_embeds": stack.embeds["image_embeds"]}]}]

    names = {"client": OpenAI(base_url=f"{stack.server.url}/v1", api_key="none"), **stack.tensors}
    exec(Page.of("docs/requests.md").block("image_grid_thw", language="python"), names)
    assert names["answer"].usage.prompt_tokens < len(stack.prompt)

    answer = stack.ask("/v1/chat/completions", **body).json()
    refused = [stack.ask("/v1/chat/completions", **body | {"messages": each}) for each in (mixed, wrong)]

    assert answer["choices"][0]["message"]["content"] == stack.text
    assert answer["usage"]["prompt_tokens"] == len(stack.prompt)
    assert [each.status_code for each in refused] == [400, 400]
    assert "Mixing raw image and embedding inputs is not allowed" in refused[0].text
    assert "The data should contain the fields: image_embeds, image_grid_thw" in refused[1].text


def test_tokenize_names_each_token_of_an_image(stack):
    found = stack.ask("/tokenize", messages=chat_body(data_url())["messages"], return_token_strs=True).json()

    assert (found["tokens"], found["token_strs"]) == (stack.prompt, stack.token_strs)


def test_a_local_file_below_the_operator_s_directory(stack):
    answer = stack.ask("/v1/chat/completions", **chat_body(f"file://{stack.directory}/picture.png")).json()
    outside = stack.ask("/v1/chat/completions", **chat_body(f"file://{stack.directory.parent}/picture.png"))

    assert answer["choices"][0]["message"]["content"] == stack.text
    assert outside.status_code == 400
    assert "must be a subpath of `--allowed-local-media-path`" in outside.text


def test_web_addresses_of_the_operator_s_hosts_that_are_not_public_are_refused(stack):
    """The name is allowed; the address that it leads to is not."""
    asked = []

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        refused = stack.ask("/v1/chat/completions", **chat_body(f"http://localhost:{files.server_port}/picture.png"))
        elsewhere = stack.ask("/v1/chat/completions", **chat_body("http://example.com/picture.png"))
        files.shutdown()

    assert (refused.status_code, elsewhere.status_code, asked) == (400, 400, [])


def test_responses_and_messages_and_ollama(stack):
    base64_text = base64.b64encode(PICTURE).decode()
    parts = [{"type": "input_text", "text": TEXT}, {"type": "input_image", "image_url": data_url()}]
    source = {"type": "base64", "media_type": "image/png", "data": base64_text}
    blocks = [{"type": "text", "text": TEXT}, {"type": "image", "source": source}]
    own = {"ignore_eos": True}

    response = stack.ask("/v1/responses", input=[{"role": "user", "content": parts}], max_output_tokens=NUM_TOKENS, **own)
    message = stack.ask("/v1/messages", messages=[{"role": "user", "content": blocks}], max_tokens=NUM_TOKENS, **own)
    turn = {"role": "user", "content": TEXT, "images": [base64_text]}
    options = {"num_predict": NUM_TOKENS, "temperature": 0}
    ollama = stack.ask("/api/chat", messages=[turn], options=options, stream=False)

    assert (response.status_code, message.status_code, ollama.status_code) == (200, 200, 200)
    assert response.json()["usage"]["input_tokens"] == len(stack.prompt)
    usage = message.json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(stack.prompt)
    assert ollama.json()["prompt_eval_count"] == len(stack.prompt)
    for text in (response.json()["output"][0]["content"][0]["text"], message.json()["content"][0]["text"]):
        assert stack.text.startswith(text)


def test_the_library_takes_images_of_pillow(stack, tmp_path):
    with Image.open(stack.directory / "picture.png") as opened:
        image = opened.convert("RGB")
    parts = [{"type": "text", "text": TEXT}, {"type": "image_pil", "image_pil": image}]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(target=stack.server.stack_directory()) as llm:
        [chatted] = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)
        text = f"user: {TEXT}<|vision_start|><|image_pad|><|vision_end|>assistant: "
        [generated] = llm.generate({"prompt": text, "multi_modal_data": {"image": image}}, params, use_tqdm=False)

    assert [list(chatted.prompt_token_ids), list(generated.prompt_token_ids)] == [stack.prompt] * 2
    assert [chatted.outputs[0].text, generated.outputs[0].text] == [stack.text] * 2
