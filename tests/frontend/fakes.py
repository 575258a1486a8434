"""A tokenizer and an engine core for the frontend's tests: real grpc.aio servers, deterministic, and killable.

Bytes are tokens (256 is BOS, 257 EOS). The engine's token at output position i is `reply(prompt, i)`, so what a resumed
request must continue with is known.
"""

import asyncio
import codecs
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import grpc
from grpc_status import rpc_status

from tetrad.services.columns import pack_f32, pack_u32, split_rows, unpack_u32
from tetrad.services.errors import FailedPrecondition, InvalidRequest, TetradError
from tetrad.services.interceptors import ErrorsAndContexts
from tetrad.services.status import to_status
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc, types_pb2

BOS, EOS, VOCAB_SIZE = 256, 257, 258
TEXT = "The quick brown fox jumps over the lazy dog. "


def text_of(ids, errors="replace"):
    return bytes(i for i in ids if i < 256).decode(errors=errors)


def _num_steps(append):
    """Return how many tokens a request gets at most."""
    counts = Counter()
    for handle, num_tokens in zip(unpack_u32(append.handles), unpack_u32(append.num_tokens), strict=True):
        counts[handle] += num_tokens
    return max(counts.values())


class _Decoder:
    def __init__(self, opened):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        generated = unpack_u32(opened.context_token_ids)
        generated = generated[len(generated) - opened.num_generated :]
        text = self.decoder.decode(bytes(i for i in generated if i < 256))
        self.pending = text[opened.num_chars_emitted :]

    def append(self, ids, final):
        delta, self.pending = self.pending + self.decoder.decode(bytes(i for i in ids if i < 256), final), ""
        return delta


class Fake:
    """A server on a unix socket that can be killed and started again."""

    interceptors = ()

    def __init__(self, path):
        self.target = f"unix:{path}"
        self._server = None

    async def start(self):
        self._server = grpc.aio.server(interceptors=self.interceptors, options=[("grpc.max_receive_message_length", 64 << 20)])
        self._register(self._server)
        self._server.add_insecure_port(self.target)
        await self._server.start()

    async def kill(self):
        if self._server is not None:
            await self._server.stop(None)
            self._server = None


class FakeTokenizer(Fake, tokenizer_pb2_grpc.TokenizerServiceServicer):
    interceptors = (ErrorsAndContexts(),)

    def __init__(self, path, generation_config=""):
        super().__init__(path)
        self.generation_config = generation_config
        self.hash = "fake"
        self.num_calls = 0  # of Encode and RenderChat
        self.num_appends = 0
        self.num_steps = 0  # steps of the engine's that these brought: the frontend joins those that it finds together
        self._appends = asyncio.Condition()
        self.open_handles = set()
        self.num_encoded = 0
        self.failing_handles = set()
        self.rendered = []  # every RenderChatRequest received
        self.opened = []  # every DetokenizeOpen received
        self.hung = asyncio.Event()
        self.hung.set()

    async def until_brought(self, num_steps):
        """Wait until so many steps of the engine's were brought."""
        async with asyncio.timeout(10), self._appends:
            await self._appends.wait_for(lambda: self.num_steps >= num_steps)

    def _register(self, server):
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self, server)

    async def GetInfo(self, request, context):
        return tokenizer_pb2.GetInfoResponse(
            model="fake",
            vocab_size=VOCAB_SIZE,
            bos_token_id=BOS,
            eos_token_id=EOS,
            eos_token_ids=[EOS],
            has_chat_template=True,
            generation_config_json=self.generation_config,
            tokenizer_hash=self.hash,
        )

    async def Encode(self, request, context):
        self.num_calls += 1
        await self.hung.wait()
        self.num_encoded += len(request.texts)
        encodings = []
        for text in request.texts:
            ids = list(text.encode())
            if request.HasField("max_tokens"):
                cut = request.max_tokens
                right = request.truncation_side == tokenizer_pb2.TRUNCATION_SIDE_RIGHT
                ids = ids[:cut] if right else ids[-cut:]
            strings = [chr(i) for i in ids] if request.return_token_strings else []
            encodings.append(tokenizer_pb2.Encoding(token_ids=pack_u32(ids), token_strings=strings))
        return tokenizer_pb2.EncodeResponse(encodings=encodings)

    async def Decode(self, request, context):
        sequences = [unpack_u32(sequence.ids) for sequence in request.sequences]
        return tokenizer_pb2.DecodeResponse(texts=[text_of(ids) for ids in sequences])

    async def RenderChat(self, request, context):
        self.rendered.append(request)
        messages = json.loads(request.messages_json)
        if any(message["content"] == "forbidden" for message in messages):
            raise InvalidRequest("Conversation roles must alternate", field="messages")
        prompt = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        if request.add_generation_prompt:
            prompt += "<assistant>"
        return tokenizer_pb2.RenderChatResponse(prompt=prompt, token_ids=pack_u32(list(prompt.encode())))

    async def Detokenize(self, request_iterator, context):
        decoders = {}
        async for request in request_iterator:
            self.opened += request.open
            for opened in request.open:
                decoders[opened.handle] = _Decoder(opened)
            if request.HasField("append"):
                await self.hung.wait()
                if request.append.handles:
                    async with self._appends:
                        self.num_appends += 1
                        self.num_steps += _num_steps(request.append)
                        self._appends.notify_all()
                yield self._answer(decoders, request.append)
            for handle in unpack_u32(request.close):
                decoders.pop(handle, None)
            self.open_handles = set(decoders)

    def _answer(self, decoders, append):
        rows = split_rows(unpack_u32(append.token_ids), unpack_u32(append.num_tokens))
        finals = set(unpack_u32(append.final_handles))
        handles, deltas, failures = [], [], []
        row_handles = unpack_u32(append.handles)
        last_rows = {handle: place for place, handle in enumerate(row_handles)}
        for place, (handle, row) in enumerate(zip(row_handles, rows, strict=True)):
            if handle in self.failing_handles or handle not in decoders:
                status = to_status(InvalidRequest(f"no handle {handle}"))
                failures.append(tokenizer_pb2.DetokenizeFailure(handle=handle, status=status))
                continue
            handles.append(handle)
            deltas.append(decoders[handle].append(row, handle in finals and place == last_rows[handle]))
        return tokenizer_pb2.DetokenizeResponse(handles=pack_u32(handles), deltas=deltas, failures=failures)


class _Running:
    def __init__(self, request):
        self.request = request
        self.prompt = unpack_u32(request.prompt_token_ids)
        self.output = unpack_u32(request.resumed_output_token_ids)
        self.fresh = True


class FakeEngineAdmin(engine_core_pb2_grpc.EngineCoreAdminServiceServicer):
    """Takes notes; a cache cannot be reset while the engine has requests."""

    def __init__(self, engine):
        self.engine = engine

    async def StartProfile(self, request, context):
        self.engine.orders.append(("start_profile",))
        if self.engine.profile_refusal is not None:
            await context.abort_with_status(rpc_status.to_status(to_status(self.engine.profile_refusal)))
        return engine_core_pb2.EngineCoreAdminServiceStartProfileResponse()

    async def StopProfile(self, request, context):
        self.engine.orders.append(("stop_profile",))
        return engine_core_pb2.EngineCoreAdminServiceStopProfileResponse(paths=["/far/away/profile-worker-1.json"])

    async def Pause(self, request, context):
        self.engine.orders.append(("pause", request.mode, request.clear_cache))
        return engine_core_pb2.PauseResponse()

    async def Resume(self, request, context):
        self.engine.orders.append(("resume",))
        return engine_core_pb2.ResumeResponse()

    async def Sleep(self, request, context):
        self.engine.orders.append(("sleep", request.level, request.mode))
        return engine_core_pb2.EngineCoreAdminServiceSleepResponse()

    async def WakeUp(self, request, context):
        self.engine.orders.append(("wake_up", *request.tags))
        return engine_core_pb2.EngineCoreAdminServiceWakeUpResponse()

    async def IsSleeping(self, request, context):
        orders = [order for order in self.engine.orders if order[0] in ("sleep", "wake_up")]
        sleeping = bool(orders) and orders[-1] not in (("wake_up",), ("wake_up", "kv_cache"))
        return engine_core_pb2.IsSleepingResponse(is_sleeping=sleeping)

    async def ResetPrefixCache(self, request, context):
        self.engine.orders.append(("reset", request.reset_running_requests))
        if self.engine.running and not request.reset_running_requests:
            status = to_status(FailedPrecondition("KV blocks are in use"))
            await context.abort_with_status(rpc_status.to_status(status))
        return engine_core_pb2.ResetPrefixCacheResponse(success=True)

    async def GetInfo(self, request, context):
        return engine_core_pb2.EngineCoreAdminServiceGetInfoResponse(info=self.engine._info())

    async def SubscribeKvEvents(self, request, context):
        self.engine.kv_starts.append(request.start_sequence_number)
        while (batch := await self.engine.kv_batches.get()) is not None:
            yield batch

    async def GetLoad(self, request, context):
        if self.engine.is_silent:
            await asyncio.get_running_loop().create_future()
        orders = [order[0] for order in self.engine.orders if order[0] in ("pause", "resume")]
        return engine_core_pb2.GetLoadResponse(load=engine_core_pb2.EngineLoad(paused=orders[-1:] == ["pause"]))


class FakeEngine(Fake, engine_core_pb2_grpc.EngineCoreServiceServicer):
    """Args: reply: (prompt ids, output position) -> token id; tokens_per_step: as with speculation."""

    def __init__(
        self, path, reply: Callable[[list[int], int], int] | None = None, max_model_len=512, tokens_per_step=1, engine_index=0
    ):
        super().__init__(path)
        data = TEXT.encode()
        self.reply = reply or (lambda _, position: data[position % len(data)])
        self.max_model_len = max_model_len
        self.tokens_per_step = tokens_per_step
        self.requests = []  # every EngineCoreRequest received
        self.orders = []  # what operators asked for
        self.is_silent = False  # to those that ask how busy it is
        self.profile_refusal: TetradError | None = None  # what StartProfile ends with
        self.num_add_messages = 0
        self.num_steps = 0
        self.aborted = []
        self.running = {}
        self.refusal: TetradError | None = None  # what sessions end with
        self.garbage = []  # messages sent before Ready
        self._context = None
        self.reject: Callable[[engine_core_pb2.EngineCoreRequest], TetradError | None] = lambda _: None
        self.step_delay_s = 0.0
        self.grammar_ends_after = None  # tokens
        self._permits = None
        self._changed = asyncio.Condition()
        self._epoch = 0
        self.engine_index = engine_index
        self.kv_batches = asyncio.Queue()  # what a listener is told; None ends its stream
        self.kv_starts = []  # from where listeners wanted to be told

    def _register(self, server):
        self._epoch += 1
        engine_core_pb2_grpc.add_EngineCoreAdminServiceServicer_to_server(FakeEngineAdmin(self), server)
        engine_core_pb2_grpc.add_EngineCoreServiceServicer_to_server(self, server)

    def pause(self):
        """Take no step but those that `allow` permits."""
        self._permits = 0

    async def allow(self, steps):
        """Permit so many steps; None: any number."""
        async with self._changed:
            self._permits = None if steps is None else (self._permits or 0) + steps
            self._changed.notify_all()

    async def take(self, steps):
        """Permit so many steps and wait until they are taken."""
        before = self.num_steps
        await self.allow(steps)
        await self.until(lambda: self.num_steps == before + steps)

    async def tell(self, kind):
        """Send a notice on the latest session."""
        await self.say(engine_core_pb2.SessionResponse(notice=engine_core_pb2.EngineNotice(kind=kind)))

    async def say(self, message):
        """Send a message of one's own on the latest session."""
        await self._context.write(message)

    async def until(self, condition):
        """Wait until `condition()` holds, looked at after every step and message."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(condition)

    async def Session(self, request_iterator, context):
        hello = await anext(request_iterator)
        assert hello.WhichOneof("message") == "hello"
        if self.refusal is not None:
            await context.abort_with_status(rpc_status.to_status(to_status(self.refusal)))
        for garbage in self.garbage:
            await context.write(garbage)
        await context.write(engine_core_pb2.SessionResponse(ready=self._info()))
        self._context = context
        self.running = running = {}
        stepper = asyncio.create_task(self._step_forever(running, context))
        try:
            async for message in request_iterator:
                await self._take(message, running, context)
        finally:
            stepper.cancel()
            with suppress(asyncio.CancelledError):
                await stepper
            running.clear()

    async def _take(self, message, running, context):
        async with self._changed:
            if message.WhichOneof("message") == "add":
                self.num_add_messages += 1
                for request in message.add.requests:
                    self.requests.append(request)
                    error = self.reject(request)
                    if error is not None:
                        rejected = engine_core_pb2.RequestRejected(request_id=request.request_id, status=to_status(error))
                        await context.write(engine_core_pb2.SessionResponse(rejected=rejected))
                        continue
                    running[request.request_id] = _Running(request)
            else:
                for request_id in message.abort.request_ids:
                    if running.pop(request_id, None) is not None:
                        self.aborted.append(request_id)
            self._changed.notify_all()

    async def _step_forever(self, running, context):
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: running and self._permits != 0)
                if self._permits is not None:
                    self._permits -= 1
                outputs = self._step(running)
                self.num_steps += 1
            await context.write(engine_core_pb2.SessionResponse(outputs=outputs))
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(self.step_delay_s)

    def _step(self, running):
        outputs = engine_core_pb2.EngineCoreOutputs(step_id=self.num_steps)
        handles, counts, tokens = [], [], []
        for request_id, each in list(running.items()):
            ids, finish = self._next(each)
            if finish or each.fresh or each.request.sampling_params.HasField("logprobs"):
                outputs.outputs.append(self._rich(each, ids, finish))
            else:
                handles.append(each.request.handle)
                counts.append(len(ids))
                tokens += ids
            each.fresh = False
            if finish:
                del running[request_id]
        if handles:
            outputs.decode.CopyFrom(
                engine_core_pb2.DecodeBatch(handles=pack_u32(handles), num_tokens=pack_u32(counts), token_ids=pack_u32(tokens))
            )
        outputs.scheduler_stats.num_running_reqs = len(running)
        outputs.scheduler_stats.kv_cache_usage = 0.25
        return outputs

    def _next(self, each):
        params, ids = each.request.sampling_params, []
        for _ in range(self.tokens_per_step):
            token = self.reply(each.prompt, len(each.output))
            each.output.append(token)
            ids.append(token)
            stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
            if token in stops and len(each.output) > params.min_tokens:
                return ids, types_pb2.FINISH_REASON_STOP
            if len(each.output) == self.grammar_ends_after:
                return ids, types_pb2.FINISH_REASON_STOP
            if len(each.output) >= params.max_tokens:
                return ids, types_pb2.FINISH_REASON_LENGTH
        return ids, 0

    def _rich(self, each, ids, finish):
        params = each.request.sampling_params
        output = engine_core_pb2.EngineCoreOutput(
            handle=each.request.handle, request_id=each.request.request_id, new_token_ids=pack_u32(ids), finish_reason=finish
        )
        if finish == types_pb2.FINISH_REASON_STOP and ids[-1] != EOS and len(each.output) != self.grammar_ends_after:
            output.stop_reason.token_id = ids[-1]
        if each.fresh:
            output.prefill_stats.num_prompt_tokens = len(each.prompt)
            output.prefill_stats.num_cached_tokens = len(each.prompt) // 16 * 16
            if params.HasField("prompt_logprobs"):
                output.new_prompt_logprobs.CopyFrom(_logprobs(each.prompt[1:], params.prompt_logprobs))
        if params.HasField("logprobs"):
            output.new_logprobs.CopyFrom(_logprobs(ids, params.logprobs))
        return output

    def _info(self):
        return engine_core_pb2.EngineInfo(
            engine_index=self.engine_index,
            model="fake",
            epoch=self._epoch,
            max_model_len=self.max_model_len,
            num_gpu_blocks=100,
            block_size=16,
            dtype="float32",
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            vocab_size=VOCAB_SIZE,
            version="test",
            schema_revision=SCHEMA_REVISION,
        )


def _logprobs(ids, num_top):
    """The token itself with -0.5, rank 1, then the `num_top` most likely: itself again, and its successors."""
    token_ids, values = [], []
    for i in ids:
        tops = [(i + offset) % 128 if offset else i for offset in range(num_top)]
        token_ids += [i, *tops]
        values += [-0.5, *(-0.5 - offset for offset in range(num_top))]
    return types_pb2.LogprobsColumns(
        token_ids=pack_u32(token_ids),
        logprobs=pack_f32(values),
        ranks=pack_u32([1] * len(ids)),
        num_positions=len(ids),
        width=num_top + 1,
    )
