"""Client: streams completions and conversations from a frontend's gRPC port.

Closing a stream, or leaving its loop, ends the request on the server. Calls that the server refused before their first message
are made again; what has begun never is. Knows nothing of HTTP, and nothing that is not in tetrad/v1/inference.proto.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tetrad_client.v1 import inference_pb2, inference_pb2_grpc, types_pb2

Message = TypeVar("Message")

_RETRY = {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2}
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "tetrad.v1.InferenceService"}, {"service": "tetrad.v1.ModelService"}],
            "retryPolicy": _RETRY | {"retryableStatusCodes": ["UNAVAILABLE"]},
        }
    ]
}


class CallFailed(Exception):
    """The server refused a call or could not complete it.

    Attributes:
        code: of gRPC, as grpc.StatusCode.INVALID_ARGUMENT.
        reason: why, in capitals; "" if the server was not reached.
        field: of the request that is wrong; "" if none is.
        retry_after_s: when to try again, in seconds; None: not said.
    """

    def __init__(self, error: grpc.Call) -> None:
        super().__init__(error.details())
        self.code: grpc.StatusCode = error.code()
        self.reason, self.field = "", ""
        self.retry_after_s: float | None = None
        status = rpc_status.from_call(error)
        for detail in status.details if status is not None else ():
            info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            retry = error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                self.reason = info.reason
            elif detail.Unpack(request) and request.field_violations:
                self.field = request.field_violations[0].field
            elif detail.Unpack(retry):
                self.retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9


class Client:
    """A connection to a frontend; close it, or use it as a context manager.

    Args:
        target: "host:port" of its gRPC port.
        api_key: sent with every call. None: none.
        credentials: of TLS. None: plain text.
        timeout_s: most seconds of a call. None: any.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50050",
        *,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        timeout_s: float | None = None,
    ) -> None:
        options = [
            ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
            ("grpc.keepalive_time_ms", 30_000),
            # The server limits its answers; gRPC's own 4 MiB are too few for many embeddings or a prompt's log-probabilities.
            ("grpc.max_receive_message_length", -1),
        ]
        if credentials is None:
            self.channel = grpc.insecure_channel(target, options)
        else:
            self.channel = grpc.secure_channel(target, credentials, options)
        self._metadata = [] if api_key is None else [("authorization", f"Bearer {api_key}")]
        self._timeout_s = timeout_s
        self._inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self._models = inference_pb2_grpc.ModelServiceStub(self.channel)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        images: Sequence[bytes] = (),
        text_options: Mapping[str, Any] | None = None,
        n: int = 1,
        **sampling: Any,
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """Stream what follows a prompt; each message has what is new of one of its outputs.

        Args:
            prompt: text, or token ids.
            images: files of the images that the text's placeholders stand for, in order.
            text_options: fields of TextOptions, as {"stop": ["."]}.
            n: outputs.
            sampling: fields of SamplingParams, as max_tokens=16, temperature=0.

        Raises:
            CallFailed: at the first message, or later.
        """
        request = inference_pb2.GenerateRequest(
            sampling_params=types_pb2.SamplingParams(**sampling),
            text_options=text_options,
            n=n,
            media=[inference_pb2.MediaPart(data=image, modality="image") for image in images],
        )
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        yield from self._stream(self._inference.Generate, request)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        text_options: Mapping[str, Any] | None = None,
        n: int = 1,
        **sampling: Any,
    ) -> Iterator[inference_pb2.ChatResponse]:
        """Stream the assistant's next turn; further arguments as of `generate`.

        Args:
            messages: fields of ChatMessage, as {"role": "user", "content": "Hello"}; with an image, as {"role": "user",
                "content_parts": [{"image": {"data": the file's bytes}}, {"text": "What is it?"}]}.
        """
        request = inference_pb2.ChatRequest(
            messages=messages, sampling_params=types_pb2.SamplingParams(**sampling), text_options=text_options, n=n
        )
        yield from self._stream(self._inference.Chat, request)

    def complete(self, prompt: str | Sequence[int], **options: Any) -> str:
        """Return the whole text that follows a prompt; options as of `generate`."""
        return "".join(delta.text for delta in self.generate(prompt, **options))

    def embed(self, texts: Sequence[str], **options: Any) -> list[list[float]]:
        """Return the embedding of each text; options are fields of EmbedRequest, as truncate_prompt_tokens=-1."""
        response = self._call(self._inference.Embed, inference_pb2.EmbedRequest(texts=texts, **options))
        return [list(each.values) for each in response.embeddings]

    def classify(self, texts: Sequence[str], **options: Any) -> list[list[float]]:
        """Return the probability of each class for each text; options are fields of ClassifyRequest."""
        response = self._call(self._inference.Classify, inference_pb2.ClassifyRequest(texts=texts, **options))
        return [list(each.probabilities) for each in response.classifications]

    def score(self, queries: str | Sequence[str], documents: Sequence[str], **options: Any) -> list[float]:
        """Return how well each document fits the query, or its own query; options are fields of ScoreRequest."""
        first = [queries] if isinstance(queries, str) else queries
        request = inference_pb2.ScoreRequest(queries=first, documents=documents, **options)
        return list(self._call(self._inference.Score, request).scores)

    def list_models(self) -> list[str]:
        """Return the names that are served."""
        response = self._call(self._models.ListModels, inference_pb2.ListModelsRequest())
        return [model.name for model in response.models]

    def close(self) -> None:
        """End the connection, and the calls that run on it."""
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _call(self, method: Callable[..., Any], request: object) -> Any:
        try:
            return method(request, metadata=self._metadata, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise CallFailed(error) from error

    def _stream(self, method: Callable[..., Any], request: object) -> Iterator[Message]:
        call = method(request, metadata=self._metadata, timeout=self._timeout_s)
        try:
            yield from call
        except grpc.RpcError as error:
            raise CallFailed(error) from error
        finally:
            call.cancel()
