// History: the snapshots of the last minutes, and what charts make of them: values, rates of counters, means and quantiles of durations.

const MOST_S = 300;
const MINUTE_S = 60;
// Between two snapshots of an open stream it is a second; more is a gap.
const GAP_S = 4;

export class History {
  constructor() {
    this.snapshots = [];
  }

  /** engines: as the topology has them; their caches are told apart by the start of their processes. */
  add(time, load, engines = []) {
    const caches = Object.fromEntries(engines.filter((each) => each.kv_cache).map((each) => [each.up_since, each.kv_cache]));
    this.snapshots.push({ time, load, caches });
    const first = this.snapshots.findIndex((each) => each.time >= time - MOST_S - 1);
    this.snapshots.splice(0, first);
  }

  get end() {
    return this.snapshots.at(-1)?.time ?? 0;
  }

  /** The newest snapshot's values. */
  get latest() {
    return this.snapshots.at(-1)?.load;
  }

  /** The seconds that charts show: whole minutes, as many as there is something to show of. */
  get span() {
    const seconds = this.end - (this.snapshots[0]?.time ?? this.end);
    return Math.min(MOST_S, MINUTE_S * Math.max(1, Math.ceil((seconds - 2) / MINUTE_S)));
  }

  /** Points {time, value} of a gauge; value null breaks the line. */
  gauge(name) {
    return this.points((now) => now.load[name], 0);
  }

  /** Growth of a counter in a second, over the last `overS` seconds; null where it fell. */
  rate(name, overS) {
    return this.points((now, then) => ratio(grown(now.load[name], then.load[name]), now.time - then.time), overS);
  }

  /** Growth of a counter of all caches in a second: of those that were known at both ends of the last `overS` seconds. */
  rateOfCaches(name, overS) {
    return this.points((now, then) => {
      const common = Object.keys(now.caches).filter((id) => id in then.caches);
      const growth = common.reduce((sum, id) => sum + now.caches[id][name] - then.caches[id][name], 0);
      return growth / (now.time - then.time);
    }, overS);
  }

  /** Whether a counter of a cache is above zero. */
  anyCache(name) {
    return Object.values(this.snapshots.at(-1)?.caches ?? {}).some((cache) => cache[name] > 0);
  }

  /** Mean of the durations that ended in the last `overS` seconds; null where none did. */
  mean(name, overS) {
    return this.points((now, then) => ratio(grown(now.load[name][0], then.load[name][0]), grown(now.load[name][1], then.load[name][1])), overS);
  }

  /** Quantile (0.95: the 95th percentile) of the durations that ended in the last `overS` seconds; null where none did. */
  quantile(name, share, overS) {
    return this.points((now, then) => quantileOf(now.load[name], then.load[name], share), overS);
  }

  /** Growth of one counter by that of another, over the last `overS` seconds; null where the other did not grow. */
  share(part, whole, overS) {
    return this.points((now, then) => ratio(grown(now.load[part], then.load[part]), grown(now.load[whole], then.load[whole])), overS);
  }

  points(valueOf, overS) {
    let then = 0;
    let begin = 0;
    const points = [];
    this.snapshots.forEach((now, place) => {
      const before = this.snapshots[place - 1];
      if (before && now.time - before.time > GAP_S) {
        points.push({ time: before.time, value: null });
        begin = place;
      }
      then = Math.max(then, begin);
      while (then < place - 1 && this.snapshots[then].time < now.time - overS) then += 1;
      if (overS && place === begin) return;
      points.push({ time: now.time, value: valueOf(now, this.snapshots[then]) });
    });
    return points;
  }
}

// Counters are sums over models: one that fell has lost a part, or is that of a process that was started anew.
const grown = (now, then) => (now >= then ? now - then : null);
const ratio = (sum, number) => (sum !== null && number > 0 ? sum / number : null);

/** Interpolate within a bucket, as Prometheus does; what is above the last limit counts as that limit. */
function quantileOf([, nowCount, now], [, thenCount, then], share) {
  const wanted = share * grown(nowCount, thenCount);
  if (!(wanted > 0)) return null;
  let low = 0;
  let below = 0;
  for (const [place, [limit, count]] of now.entries()) {
    const upTo = count - (then[place]?.[1] ?? 0);
    if (upTo >= wanted) return low + ((limit - low) * (wanted - below)) / (upTo - below);
    [low, below] = [limit, upTo];
  }
  return low;
}
