// Feed: a snapshot a second from the server, as long as the page can be seen; comes back by itself.

import { ask, events } from "./server.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

export class Feed {
  /**
   * onSnapshot: gets each one, and whether it is the first of its stream: that one has all requests that are known.
   * onState: gets "live", "lost" or "key" (a key is needed), and the error behind it.
   */
  constructor(onSnapshot, onState) {
    this.onSnapshot = onSnapshot;
    this.onState = onState;
    this.pauseMs = FIRST_PAUSE_MS;
    this.stream = null;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  /** Follow from now on, anew if a stream is open: with another key, say. */
  start() {
    this.stop();
    if (!document.hidden) this.follow((this.stream = new AbortController()));
  }

  stop() {
    clearTimeout(this.timer);
    this.stream?.abort();
    this.stream = null;
  }

  async follow(stream) {
    let isFirst = true;
    try {
      for await (const snapshot of events(await ask("console/events", { signal: stream.signal }))) {
        if (stream !== this.stream) return;
        this.pauseMs = FIRST_PAUSE_MS;
        this.onState("live");
        this.onSnapshot(snapshot, isFirst);
        isFirst = false;
      }
      // It ended in good order: this server leaves, and its successor answers.
      if (stream === this.stream) this.again(FIRST_PAUSE_MS);
    } catch (error) {
      if (stream !== this.stream) return;
      if (error.status === 401) return this.onState("key", error);
      this.onState("lost", error);
      this.again(this.pauseMs);
      this.pauseMs = Math.min(2 * this.pauseMs, LONGEST_PAUSE_MS);
    }
  }

  again(pauseMs) {
    this.timer = setTimeout(() => this.start(), pauseMs);
  }
}
