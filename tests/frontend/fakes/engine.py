"""A fake engine core that runs its own steps and records all messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from grpc_status import rpc_status

from tests.frontend.fakes.alphabet import EOS, TEXT, VOCAB_SIZE
from tests.frontend.fakes.engine_admin import FakeEngineAdmin
from tests.frontend.fakes.server import Fake
from tetrad.services.errors import TetradError
from tetrad.services.rpc.columns import pack_f32, pack_u32, unpack_u32
from tetrad.services.rpc.status import to_status
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc, types_pb2

_EVENTS = (engine_core_pb2.ENGINE_CORE_EVENT_TYPE_QUEUED, engine_core_pb2.ENGINE_CORE_EVENT_TYPE_SCHEDULED)
LEASE_ID = 2**63 + 5
"""More than a float of 64 bits can hold exactly."""


class _Running:
    def __init__(self, request):
        self.request = request
        self.prompt = unpack_u32(request.prompt_token_ids)
        self.output = unpack_u32(request.resumed_output_token_ids)
        self.fresh = True


class FakeEngine(Fake, engine_core_pb2_grpc.EngineCoreServiceServicer):
    """Args: reply: (prompt ids, output position) -> token id; tokens_per_step: as with speculation."""

    def __init__(
        self, path, reply: Callable[[list[int], int], int] | None = None, max_model_len=512, tokens_per_step=1, engine_index=0
    ):
        super().__init__(path)
        data = TEXT.encode()
        self.reply = reply or (lambda _, position: data[position % len(data)])
        self.max_model_len = max_model_len
        self.vocab_size = VOCAB_SIZE
        self.tokens_per_step = tokens_per_step
        self.requests = []  # every EngineCoreRequest received
        self.lora_ids = []  # of the adapters that it lists, in their order
        self.orders = []  # what operators asked for
        self.checked_weights_path = ""
        self.load_fields = {}  # what it says of its load besides
        self.is_silent = False  # to those that ask how busy it is
        self.refusals: dict[str, list[TetradError]] = {}  # by the admin service's method, the errors of its next calls
        self.profile_refusal: TetradError | None = None  # what StartProfile ends with
        self.num_add_messages = 0
        self.add_sizes = []  # of the messages, in bytes
        self.num_shared_params = 0
        self.shares_params = True  # what it says of itself
        self.supports_lora = False  # likewise
        self.logits_processors = ()  # likewise
        self.draft_metrics = None  # of each request
        self.capabilities = [types_pb2.CAPABILITY_PROMPT_SCORES]  # likewise
        self.modalities = ()  # likewise
        self.transcribes = False  # likewise
        self.max_media_bytes = 0  # likewise
        self.max_message_bytes = None
        self.kv_role = types_pb2.KV_ROLE_UNSPECIFIED  # likewise
        self.times = ()  # of each request, on its clock: queued, scheduled, first token
        self.keeps_blocks = True  # for requests that ask for it
        self.num_cached_tokens = None  # of each prompt; None: all whole blocks
        self.num_external_tokens = 0  # those of them that it reads from another engine core
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
                self.add_sizes.append(message.ByteSize())
                self.num_shared_params += len(message.add.shared_sampling_params)
                for request in message.add.requests:
                    if request.HasField("sampling_params_index"):
                        shared = message.add.shared_sampling_params[request.sampling_params_index]
                        request.sampling_params.CopyFrom(shared)
                        request.sampling_params.seed = request.seed
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
                await self._changed.wait_for(lambda: running and self._permits != 0 and self._can_step(running))
                if self._permits is not None:
                    self._permits -= 1
                outputs = self._step(running)
                self.num_steps += 1
            await context.write(engine_core_pb2.SessionResponse(outputs=outputs))
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(self.step_delay_s)

    def _can_step(self, running):
        """Return whether the requests that arrived are enough for a step."""
        return True

    def _step(self, running):
        outputs = engine_core_pb2.EngineCoreOutputs(step_id=self.num_steps, timestamp_monotonic_s=sum(self.times[-1:]))
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
            num_cached = len(each.prompt) // 16 * 16 if self.num_cached_tokens is None else self.num_cached_tokens
            output.prefill_stats.num_cached_tokens = num_cached
            output.prefill_stats.num_external_cached_tokens = self.num_external_tokens
            for kind, at in zip(_EVENTS, self.times, strict=False):
                output.events.add(type=kind, timestamp_monotonic_s=at)
            if params.HasField("prompt_logprobs"):
                output.new_prompt_logprobs.CopyFrom(_logprobs(each.prompt[1:], params.prompt_logprobs))
            if params.HasField("prompt_score_ids"):
                output.prompt_scores.CopyFrom(_scores(params.prompt_score_ids, len(each.prompt)))
        if finish and self.draft_metrics is not None:
            output.spec_decode_metrics.CopyFrom(self.draft_metrics)
        if finish and each.request.kv_transfer.do_remote_decode and self.keeps_blocks:
            output.kv_transfer.CopyFrom(self._handoff(each))
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
            weights_dtype="Q4_1",
            kv_cache_dtype="int8",
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            vocab_size=self.vocab_size,
            version="test",
            schema_revision=SCHEMA_REVISION,
            supports_shared_sampling_params=self.shares_params,
            capabilities=self.capabilities,
            supports_lora=self.supports_lora,
            logits_processors=self.logits_processors,
            modalities=self.modalities,
            is_encoder_decoder=self.transcribes,
            supports_transcription=self.transcribes,
            max_media_bytes=self.max_media_bytes,
            max_message_bytes=self.max_message_bytes,
            kv_role=self.kv_role,
            checked_weights_path=self.checked_weights_path,
        )

    def _handoff(self, each):
        """Say where the blocks of a prompt are kept."""
        num_blocks = len(each.prompt) // 16
        return types_pb2.KvTransferParams(
            do_remote_prefill=True,
            remote_engine_id=f"engine-{self.engine_index}",
            remote_request_id=each.request.request_id,
            remote_host="10.0.0.7",
            remote_port=7100,
            remote_block_ids=[pack_u32(range(num_blocks))],
            tp_size=1,
            pp_size=1,
            remote_num_tokens=16 * num_blocks,
            lease_id=LEASE_ID,
            transfer_mode="pull",
            extra_json=each.request.kv_transfer.extra_json,
        )


def _scores(asked, num_prompt_tokens):
    """Score each id by its tenth below 0, in every row."""
    ids, num_rows = unpack_u32(asked.token_ids), num_prompt_tokens - 1 - asked.start
    ids = ids if len(ids) == num_rows * asked.width else ids * num_rows
    values = [float("-inf") if each == 2**32 - 1 else each / -10 for each in ids]
    return types_pb2.PromptScores(scores=pack_f32(values), num_rows=num_rows, width=asked.width)


def _logprobs(ids, num_top):
    """The token itself with -0.5, rank 1, then the `num_top` most likely (-1: all 128): itself again, and its successors."""
    token_ids, values = [], []
    num_top = 128 if num_top == -1 else num_top
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


@asynccontextmanager
async def running_engine(fake: FakeEngine, carrier) -> AsyncIterator[FakeEngine]:
    """Start an engine core on a carrier, and kill it at the end."""
    fake.carrier = carrier
    await fake.start()
    try:
        yield fake
    finally:
        await fake.kill()
