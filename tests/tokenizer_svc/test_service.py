"""The service over gRPC: every RPC, its errors, and short calls beside long texts."""

import asyncio
import dataclasses
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tokenizers import Tokenizer as RustTokenizer

from tests.tokenizer_svc.conftest import HeldTokenizer, Serve
from tests.tokenizer_svc.errors import error_of
from tetrad.services.errors import InvalidRequest, NotFound
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.services.rpc.status import from_status
from tetrad.tokenizer_svc.api.servicer import TokenizerServicer
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve as serve_main
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc, types_pb2

USER = [{"role": "user", "content": "Hi"}]


def step(
    rows: dict[int, Sequence[int]], *, opened: Sequence[tokenizer_pb2.DetokenizeOpen] = (), final: Sequence[int] = ()
) -> tokenizer_pb2.DetokenizeRequest:
    return tokenizer_pb2.DetokenizeRequest(
        open=opened,
        append=tokenizer_pb2.DetokenizeAppend(
            handles=pack_u32(rows),
            num_tokens=pack_u32(len(ids) for ids in rows.values()),
            token_ids=pack_u32(token_id for ids in rows.values() for token_id in ids),
            final_handles=pack_u32(final),
        ),
    )


def opened(handle: int, context: Sequence[int] = (504,)) -> tokenizer_pb2.DetokenizeOpen:
    return tokenizer_pb2.DetokenizeOpen(handle=handle, context_token_ids=pack_u32(context))


class TestEncodeAndDecode:
    async def test_texts_keep_their_order(self, serve: Serve) -> None:
        async with serve() as stub:
            response = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["The", " capital", "", "a\x00b"]))
            ids = [unpack_u32(encoding.token_ids) for encoding in response.encodings]
            decoded = await stub.Decode(
                tokenizer_pb2.DecodeRequest(sequences=[types_pb2.TokenIds(ids=pack_u32(row)) for row in ids])
            )

        assert ids[:3] == [[504], [3575], []]
        assert decoded.texts == ["The", " capital", "", "a\x00b"]

    async def test_answers_that_fit_no_message_are_refused_with_size_and_limit(self, serve: Serve) -> None:
        async with serve(max_message_bytes=1 << 20) as stub:
            ids = (await stub.Encode(tokenizer_pb2.EncodeRequest(texts=[" international"]))).encodings[0].token_ids
            sequence = types_pb2.TokenIds(ids=ids * 100_000)
            errors = [
                await error_of(stub.Encode(tokenizer_pb2.EncodeRequest(texts=["7" * 300_000]))),
                await error_of(stub.Decode(tokenizer_pb2.DecodeRequest(sequences=[sequence]))),
            ]

        for error, field in zip(errors, ("texts", "sequences"), strict=True):
            assert isinstance(error, InvalidRequest)
            assert error.field == field
            assert f"bytes; the limit is {1 << 20}" in error.message

    async def test_options_are_honoured(self, serve: Serve) -> None:
        request = tokenizer_pb2.EncodeRequest(texts=["The capital of"], max_tokens=2, return_token_strings=True)
        async with serve() as stub:
            [end] = (await stub.Encode(request)).encodings
            request.truncation_side = tokenizer_pb2.TRUNCATION_SIDE_RIGHT
            [start] = (await stub.Encode(request)).encodings
            ids = types_pb2.TokenIds(ids=pack_u32([504, 2]))
            shown = await stub.Decode(tokenizer_pb2.DecodeRequest(sequences=[ids], skip_special_tokens=False))

        assert end.token_strings == ["Ġcapital", "Ġof"]
        assert start.token_strings == ["The", "Ġcapital"]
        assert shown.texts == ["The<|im_end|>"]

    async def test_a_text_that_is_too_long_is_refused_with_value_and_limit(self, serve: Serve) -> None:
        async with serve(max_text_bytes=10) as stub:
            await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["0123456789"]))
            error = await error_of(stub.Encode(tokenizer_pb2.EncodeRequest(texts=["你好你好"])))

        assert isinstance(error, InvalidRequest)
        assert "12 bytes" in error.message
        assert "limit is 10" in error.message
        assert error.field == "texts"

    @pytest.mark.parametrize("column", [pack_u32([49152]), b"odd"])
    async def test_ids_that_are_none_are_refused(self, serve: Serve, column: bytes) -> None:
        async with serve() as stub:
            request = tokenizer_pb2.DecodeRequest(sequences=[types_pb2.TokenIds(ids=column)])
            assert isinstance(await error_of(stub.Decode(request)), InvalidRequest)


class TestRenderChat:
    async def test_prompt_and_ids(self, serve: Serve, tokenizer: Tokenizer) -> None:
        async with serve() as stub:
            response = await stub.RenderChat(tokenizer_pb2.RenderChatRequest(messages_json=json.dumps(USER).encode()))

        assert response.prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert unpack_u32(response.token_ids) == tokenizer.encode(response.prompt)

    async def test_fields_reach_the_template(self, serve: Serve) -> None:
        template = "{{ mood }}{{ tools[0].a }}{{ documents[0].b }}{{ add_generation_prompt }}"
        request = tokenizer_pb2.RenderChatRequest(
            messages_json=json.dumps(USER).encode(),
            tools_json=b'[{"a": 1}]',
            documents_json=b'[{"b": 2}]',
            chat_template=template,
            chat_template_kwargs_json=b'{"mood": "glad"}',
            add_generation_prompt=False,
            max_tokens=1,
        )
        async with serve() as stub:
            response = await stub.RenderChat(request)

        assert response.prompt == "glad12False"
        assert len(unpack_u32(response.token_ids)) == 1

    async def test_continuing_needs_no_generation_prompt(self, serve: Serve) -> None:
        messages = json.dumps([*USER, {"role": "assistant", "content": "Once upon"}]).encode()
        request = tokenizer_pb2.RenderChatRequest(messages_json=messages, continue_final_message=True)
        async with serve() as stub:
            response = await stub.RenderChat(request)
            request.add_generation_prompt = True
            error = await error_of(stub.RenderChat(request))

        assert response.prompt.endswith("assistant\nOnce upon")
        assert "exclude each other" in error.message

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"messages_json": b"\xff"}, "messages_json"),
            ({"messages_json": b"[]"}, "messages_json"),
            (
                {
                    "messages_json": rb'[{"role": "user", "content": "\ud83d"}]',
                    "chat_template": "{{ messages[0].content }}",
                },
                "messages_json",
            ),
            ({"chat_template": "{{ raise_exception('no') }}"}, "chat_template"),
            ({"chat_template": "x" * 200}, "chat_template"),
            ({"chat_template": "é" * 60}, "messages_json"),
        ],
    )
    async def test_bad_conversations_are_refused(self, serve: Serve, fields: dict[str, Any], field: str) -> None:
        request = tokenizer_pb2.RenderChatRequest(**{"messages_json": json.dumps(USER).encode(), **fields})
        async with serve(max_text_bytes=100) as stub:
            error = await error_of(stub.RenderChat(request))

        assert isinstance(error, InvalidRequest)
        assert error.field == field


class TestDetokenize:
    async def test_open_append_close_in_one_message(self, serve: Serve) -> None:
        async with serve() as stub:
            call = stub.Detokenize()
            request = step({7: [3575, 282]}, opened=[opened(7)])
            request.close = pack_u32([7])
            await call.write(request)
            first = await call.read()
            await call.write(step({7: [3575]}))
            second = await call.read()
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF

        assert (unpack_u32(first.handles), list(first.deltas)) == ([7], [" capital of"])
        [failure] = second.failures
        assert isinstance(from_status(failure.status), NotFound)
        assert not second.handles

    async def test_each_append_has_one_answer_and_other_messages_have_none(self, serve: Serve) -> None:
        async with serve() as stub:
            call = stub.Detokenize()
            await call.write(tokenizer_pb2.DetokenizeRequest(open=[opened(1)]))
            await call.write(tokenizer_pb2.DetokenizeRequest(append=tokenizer_pb2.DetokenizeAppend()))
            await call.write(step({1: [504]}))
            await call.write(tokenizer_pb2.DetokenizeRequest(close=pack_u32([1])))
            await call.done_writing()
            answers = [list(response.deltas) async for response in call]

        assert answers == [[], ["The"]]

    async def test_a_stream_that_starts_over_continues_the_text(self, serve: Serve, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("a 🤖 b")
        cut = 2
        async with serve() as stub:
            call = stub.Detokenize()
            await call.write(step({1: ids[:cut]}, opened=[opened(1)]))
            [got] = (await call.read()).deltas
            call.cancel()
            again = stub.Detokenize()
            resumed = opened(4, [504, *ids[:cut]])
            resumed.num_generated, resumed.num_chars_emitted = cut, len(got)
            await again.write(step({4: ids[cut:]}, opened=[resumed], final=[4]))
            [rest] = (await again.read()).deltas
            await again.done_writing()

        assert got + rest == "a 🤖 b"

    @pytest.mark.parametrize(
        "columns",
        [
            {"handles": pack_u32([1]), "num_tokens": pack_u32([2]), "token_ids": pack_u32([504])},
            {"handles": pack_u32([1, 2]), "num_tokens": pack_u32([1]), "token_ids": pack_u32([504])},
            {"handles": b"abc"},
        ],
    )
    async def test_columns_that_disagree_end_the_stream(self, serve: Serve, columns: dict[str, bytes]) -> None:
        async with serve() as stub:
            call = stub.Detokenize()
            await call.write(tokenizer_pb2.DetokenizeRequest(append=tokenizer_pb2.DetokenizeAppend(**columns)))
            assert isinstance(await error_of(call.read()), InvalidRequest)

    async def test_many_empty_texts_do_not_hold_up_an_append(self, serve: Serve, held: HeldTokenizer) -> None:
        """Each text costs as much as several characters, however short it is: a message may have millions."""
        async with serve(held) as stub:
            encoding = asyncio.ensure_future(stub.Encode(tokenizer_pb2.EncodeRequest(texts=[""] * 1000)))
            await asyncio.to_thread(held.began.wait, 10)
            call = stub.Detokenize()
            await call.write(step({1: [504]}, opened=[opened(1)]))

            assert (await asyncio.wait_for(call.read(), 5)).deltas == ["The"]

            held.go_on.set()
            assert len((await encoding).encodings) == 1000

    async def test_a_long_text_does_not_hold_up_an_append(self, serve: Serve, held: HeldTokenizer) -> None:
        async with serve(held, threads=1) as stub:
            encoding = asyncio.ensure_future(stub.Encode(tokenizer_pb2.EncodeRequest(texts=["long " * 1_000])))
            await asyncio.to_thread(held.began.wait, 10)
            call = stub.Detokenize()
            await call.write(step({1: [504]}, opened=[opened(1)]))
            response = await call.read()
            still_encoding = not encoding.done()
            held.go_on.set()
            await encoding
            await call.done_writing()

        assert list(response.deltas) == ["The"]
        assert still_encoding


class TestInfoAndBundle:
    async def test_info(self, serve: Serve, tokenizer: Tokenizer) -> None:
        async with serve() as stub:
            info = await stub.GetInfo(tokenizer_pb2.GetInfoRequest())

        assert (info.vocab_size, info.model_max_length) == (49152, 8192)
        assert (info.bos_token_id, info.eos_token_id, info.pad_token_id, info.unk_token_id) == (1, 2, 2, 0)
        assert info.eos_token_ids == [2]
        assert info.special_token_ids == list(range(17))
        assert info.has_chat_template
        assert info.chat_template == tokenizer.facts.chat_templates["default"]
        assert info.tokenizer_hash == tokenizer.hash
        # The file holds none: those of the built-in model.
        assert json.loads(info.generation_config_json) == {"temperature": 0.2, "top_p": 0.9}

    async def test_the_bundle_is_a_whole_tokenizer(self, serve: Serve, tokenizer: Tokenizer, texts: list[str]) -> None:
        async with serve() as stub:
            messages = [message async for message in stub.GetBundle(tokenizer_pb2.GetBundleRequest())]
        data = b"".join(message.data for message in messages)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name).decode() for name in archive.namelist()}
        rust = RustTokenizer.from_str(files["tokenizer.json"])

        assert {len(message.data) for message in messages[:-1]} == {64 << 10}
        assert [message.sha256 for message in messages] == [""] * (len(messages) - 1) + [hashlib.sha256(data).hexdigest()]
        assert [rust.encode(text).ids for text in texts[:50]] == [tokenizer.encode(text) for text in texts[:50]]
        assert json.loads(files["tokenizer_config.json"])["chat_template"] == tokenizer.facts.chat_templates["default"]
        assert json.loads(files["config.json"])["eos_token_id"] == 2

    def test_the_same_tokenizer_makes_the_same_bundle(self, tokenizer: Tokenizer, held: HeldTokenizer) -> None:
        assert tokenizer.bundle == held.bundle
        assert tokenizer.hash == held.hash

    def test_sampling_defaults_of_a_release_do_not_make_another_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Frontends refuse another tokenizer than their first one: an upgrade of a built-in model's defaults is none."""
        upgraded = Tokenizer(dataclasses.replace(tokenizer.facts, release_config={"temperature": 0.9}))
        other = Tokenizer(dataclasses.replace(tokenizer.facts, generation_config={"temperature": 0.9}))

        assert upgraded.hash == tokenizer.hash != other.hash


class TestProcess:
    async def test_ready_when_loaded_and_gone_after_shutdown(self, smollm2: Path, tmp_path: Path) -> None:
        settings = TokenizerSettings(listen=f"unix:{tmp_path}/tokenizer", model=str(smollm2))
        shutdown = asyncio.Event()
        running = asyncio.create_task(serve_main(settings, shutdown))
        channel = open_channel(settings.listen)
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="tetrad.v1.TokenizerService")
        states = health.Watch(request, wait_for_ready=True)

        async for state in states:
            if state.status == health_pb2.HealthCheckResponse.SERVING:
                break
        info = await tokenizer_pb2_grpc.TokenizerServiceStub(channel).GetInfo(tokenizer_pb2.GetInfoRequest())
        states.cancel()
        shutdown.set()
        await running
        await channel.close()

        assert info.model == str(smollm2)

    async def test_drain_lets_running_calls_finish(self, held: HeldTokenizer) -> None:
        with ThreadPoolExecutor(1) as pool:
            chat = ChatRenderer(held.facts, ChatLimits())
            servicer = TokenizerServicer(held, chat, pool, model="held", max_text_bytes=10_000)
            encoding = asyncio.create_task(servicer.Encode(tokenizer_pb2.EncodeRequest(texts=["long " * 1_000]), None))
            await asyncio.to_thread(held.began.wait, 10)

            draining = asyncio.create_task(servicer.drain())
            await asyncio.sleep(0)
            waits = not draining.done()
            held.go_on.set()
            await draining

        assert waits
        assert len((await encoding).encodings) == 1

    def test_a_broken_file_ends_the_process_for_good_with_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03")
        command = [sys.executable, "-m", "tetrad.tokenizer_svc", "--model", str(tmp_path / "broken.gguf")]

        result = subprocess.run(command, capture_output=True, text=True, timeout=60)

        assert result.returncode == 78
        assert result.stderr.count("\n") == 1
        assert "broken.gguf" in result.stderr

    def test_sigterm_ends_the_process_cleanly(self, smollm2: Path, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "tetrad.tokenizer_svc", "--model", str(smollm2), "--listen", f"unix:{tmp_path}/t"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            while "tokenizer.ready" not in (line := process.stderr.readline()):
                assert line, "the service ended before it was ready"
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(20) == 0

    def test_neither_torch_nor_transformers_is_imported(self, smollm2: Path) -> None:
        code = (
            "import sys, tetrad.tokenizer_svc.service as m; m.load_tokenizer(sys.argv[1]).encode('x');"
            "sys.exit(', '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
        )

        result = subprocess.run([sys.executable, "-c", code, str(smollm2)], capture_output=True, text=True, timeout=60)

        assert (result.returncode, result.stderr) == (0, "")
