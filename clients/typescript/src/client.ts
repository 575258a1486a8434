/**
 * A typed client of tetrad.v1.InferenceService and ModelService, made from the .proto files at run time.
 *
 * Streams are async iterables: the request begins with the loop, and leaving the loop ends it on the server. Integers of
 * 64 bits are numbers where they come; a seed beyond 2^53 goes as a string, since no number holds it. Knows no HTTP.
 */
import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./generated/inference.js";
import type { ChatRequest } from "./generated/tetrad/v1/ChatRequest.js";
import type { ChatResponse__Output } from "./generated/tetrad/v1/ChatResponse.js";
import type { GenerateRequest } from "./generated/tetrad/v1/GenerateRequest.js";
import type { GenerateResponse__Output } from "./generated/tetrad/v1/GenerateResponse.js";
import type { InferenceServiceClient } from "./generated/tetrad/v1/InferenceService.js";
import type { ModelCard__Output } from "./generated/tetrad/v1/ModelCard.js";
import type { ModelServiceClient } from "./generated/tetrad/v1/ModelService.js";

export type { ChatRequest, ChatResponse__Output, GenerateRequest, GenerateResponse__Output, ModelCard__Output };

const PROTOS = fileURLToPath(new URL("../protos", import.meta.url));
const FILES = ["tetrad/v1/inference.proto"];
const FORM = { includeDirs: [PROTOS], keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };

// A call that the server refused before its first message is made again; what has begun never is.
const SERVICE_CONFIG = JSON.stringify({
  methodConfig: [
    {
      name: [{ service: "tetrad.v1.InferenceService" }, { service: "tetrad.v1.ModelService" }],
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: "0.1s",
        maxBackoff: "2s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE"],
      },
    },
  ],
});

export interface ClientOptions {
  /** Key of the server. Absent: none. */
  apiKey?: string;
  /** How to connect. Absent: in plain text. */
  credentials?: grpc.ChannelCredentials;
}

export class TetradClient {
  readonly #inference: InferenceServiceClient;
  readonly #models: ModelServiceClient;
  readonly #metadata = new grpc.Metadata();

  /** @param target "host:port" of a frontend's gRPC port. */
  constructor(target: string, { apiKey, credentials = grpc.credentials.createInsecure() }: ClientOptions = {}) {
    const { tetrad } = grpc.loadPackageDefinition(loadSync(FILES, FORM)) as unknown as ProtoGrpcType;
    const options = {
      "grpc.service_config": SERVICE_CONFIG,
      "grpc.keepalive_time_ms": 30_000,
      // The server limits its answers; gRPC's own 4 MiB are too few for a prompt's log-probabilities.
      "grpc.max_receive_message_length": -1,
    };
    this.#inference = new tetrad.v1.InferenceService(target, credentials, options);
    this.#models = new tetrad.v1.ModelService(target, credentials, options);
    if (apiKey !== undefined) this.#metadata.set("authorization", `Bearer ${apiKey}`);
  }

  /** Streams what follows a prompt; each message has what is new of one of its `n` outputs. */
  generate(request: GenerateRequest): AsyncIterable<GenerateResponse__Output> {
    checkSeed(request);
    return untilLeft(() => this.#inference.generate(request, this.#metadata));
  }

  /** Streams the assistant's next turn. */
  chat(request: ChatRequest): AsyncIterable<ChatResponse__Output> {
    checkSeed(request);
    return untilLeft(() => this.#inference.chat(request, this.#metadata));
  }

  /** Returns the whole text that follows a prompt. */
  async complete(request: GenerateRequest): Promise<string> {
    let text = "";
    for await (const delta of this.generate(request)) text += delta.text;
    return text;
  }

  /** Returns the models that are served. */
  listModels(): Promise<ModelCard__Output[]> {
    return new Promise((resolve, reject) => {
      this.#models.listModels({}, this.#metadata, (error, response) => {
        if (error) reject(error);
        else resolve(response?.models ?? []);
      });
    });
  }

  /** Ends the connection; what runs on it ends with an error. */
  close(): void {
    this.#inference.close();
    this.#models.close();
  }
}

/** Refuses a number that is not the one its author wrote: it would give other tokens, silently. */
function checkSeed({ sampling_params: params }: GenerateRequest | ChatRequest): void {
  const seed = params?.seed;
  if (typeof seed === "number" && !Number.isSafeInteger(seed)) {
    throw new RangeError(`sampling_params.seed must be an integer of at most 2^53 - 1, or a string, got ${seed}`);
  }
}

/** Begins a call with the loop over it: an error that comes before the loop would have no listener, and end the process. */
async function* untilLeft<T>(begin: () => grpc.ClientReadableStream<T>): AsyncIterable<T> {
  const call = begin();
  try {
    for await (const message of call) yield message as T;
  } finally {
    call.cancel();
  }
}
