/** Streams a completion: `node dist/complete.js HOST:PORT PROMPT`. */
import { TetradClient } from "./client.js";

const [target = "127.0.0.1:50050", text = "The capital of France is"] = process.argv.slice(2);
const client = new TetradClient(target);
try {
  for await (const delta of client.generate({ text, sampling_params: { max_tokens: 16, temperature: 0 } })) {
    process.stdout.write(delta.text);
  }
  process.stdout.write("\n");
} finally {
  client.close();
}
