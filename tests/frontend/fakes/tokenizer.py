"""A fake tokenizer of bytes."""

import asyncio
import codecs
import json
from collections import Counter

from tests.frontend.fakes.alphabet import BOS, BOS_NAME, EOS, VOCAB_SIZE, text_of
from tests.frontend.fakes.images import MARK, FakeImages
from tests.frontend.fakes.server import Fake
from tests.frontend.fakes.speech import FakeSpeech
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32, split_rows, unpack_u32
from tetrad.services.rpc.interceptors import ErrorsAndContexts
from tetrad.services.rpc.status import to_status
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc


def _num_steps(append):
    """Return how many tokens a request gets at most."""
    counts = Counter()
    for handle, num_tokens in zip(unpack_u32(append.handles), unpack_u32(append.num_tokens), strict=True):
        counts[handle] += num_tokens
    return max(counts.values())


def _written(content):
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else MARK for part in content)


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


class FakeTokenizer(Fake, tokenizer_pb2_grpc.TokenizerServiceServicer):
    interceptors = (ErrorsAndContexts(),)

    def __init__(self, path, generation_config=""):
        super().__init__(path)
        self.generation_config = generation_config
        self.hash = "fake"
        self.vocab_size = VOCAB_SIZE
        self.num_calls = 0  # of Encode and RenderChat, in batches or not
        self.num_batches = 0
        self.num_media_resets = 0
        self.text_sizes = []  # of every text received, in characters
        self.num_appends = 0
        self.num_steps = 0  # engine steps in these messages: the frontend merges steps that wait together
        self._appends = asyncio.Condition()
        self.open_handles = set()
        self.num_encoded = 0
        self.failing_handles = set()
        self.rendered = []  # every RenderChatRequest received
        self.opened = []  # every DetokenizeOpen received
        self.encoded = []  # every EncodeRequest with images received
        self.modalities = ()  # what it says of itself
        self.images = FakeImages()
        self.speech = FakeSpeech()
        self.vocab_size = VOCAB_SIZE
        self.hung = asyncio.Event()
        self.hung.set()
        self.answers_facts = True  # while it hangs

    async def until_brought(self, num_steps):
        """Wait until the messages of so many engine steps have arrived."""
        async with asyncio.timeout(10), self._appends:
            await self._appends.wait_for(lambda: self.num_steps >= num_steps)

    def _register(self, server):
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self, server)

    async def ResetMediaCache(self, request, context):
        self.num_media_resets += 1
        return tokenizer_pb2.ResetMediaCacheResponse()

    async def GetInfo(self, request, context):
        if not self.answers_facts:
            await self.hung.wait()
        return tokenizer_pb2.GetInfoResponse(
            model="fake",
            vocab_size=self.vocab_size,
            bos_token_id=BOS,
            eos_token_id=EOS,
            eos_token_ids=[EOS],
            has_chat_template=True,
            generation_config_json=self.generation_config,
            tokenizer_hash=self.hash,
            modalities=self.modalities,
            speech_tasks=self.speech.tasks,
        )

    async def Encode(self, request, context):
        self.num_calls += 1
        self.text_sizes += map(len, request.texts)
        await self.hung.wait()
        self.num_encoded += len(request.texts)
        if request.media:
            self.encoded.append(request)
            text = bytes(unpack_u32(request.token_ids)).decode() if request.token_ids else request.texts[0]
            ids, features = self.images.expand(text, request.media)
            return tokenizer_pb2.EncodeResponse(encodings=[tokenizer_pb2.Encoding(token_ids=ids, mm_features=features)])
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
        await self.hung.wait()
        sequences = [unpack_u32(sequence.ids) for sequence in request.sequences]
        if any(token_id >= self.vocab_size for ids in sequences for token_id in ids):
            raise InvalidRequest("A token id is outside the vocabulary.", field="sequences")
        bos = "" if request.skip_special_tokens else BOS_NAME
        return tokenizer_pb2.DecodeResponse(texts=[bos * ids.count(BOS) + text_of(ids) for ids in map(list, sequences)])

    async def RenderChat(self, request, context):
        self.rendered.append(request)
        await self.hung.wait()
        messages = json.loads(request.messages_json)
        if any(message["content"] == "forbidden" for message in messages):
            raise InvalidRequest("Conversation roles must alternate", field="messages")
        prompt = "".join(f"<{message['role']}>{_written(message['content'])}\n" for message in messages)
        if request.add_generation_prompt:
            prompt += "<assistant>"
        ids, features = self.images.expand(prompt, request.media)
        return tokenizer_pb2.RenderChatResponse(prompt=prompt, token_ids=ids, mm_features=features)

    async def PrepareSpeech(self, request, context):
        await self.hung.wait()
        for response in self.speech.prepare(request):
            yield response

    async def Batch(self, request_iterator, context):
        turn = asyncio.Lock()  # gRPC takes one message at a time

        async def answer(request):
            answers = await asyncio.gather(*(self._batched(call, context) for call in request.calls))
            async with turn:
                await context.write(tokenizer_pb2.BatchResponse(answers=answers, id=request.id))

        async with asyncio.TaskGroup() as messages:
            async for request in request_iterator:
                self.num_batches += 1
                messages.create_task(answer(request))

    async def _batched(self, call, context):
        try:
            if call.WhichOneof("call") == "encode":
                return tokenizer_pb2.BatchedAnswer(encode=await self.Encode(call.encode, context))
            return tokenizer_pb2.BatchedAnswer(render_chat=await self.RenderChat(call.render_chat, context))
        except InvalidRequest as error:
            return tokenizer_pb2.BatchedAnswer(error=to_status(error))

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
