// Format: numbers as people read them. Units are part of the text.

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const timeOfDay = (unixSeconds) => clock.format(new Date(unixSeconds * 1000));
export const count = (value) => whole.format(value);
export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** 0.0042 -> "4.2 ms", 3.21 -> "3.21 s", 200 -> "3.3 min" */
export function duration(seconds) {
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${(seconds / 60).toFixed(1)} min`;
}

/** How long something has been so: 42 -> "42 s", 3700 -> "1 h 1 min" */
export function age(seconds) {
  const total = Math.max(0, Math.floor(seconds));
  const [days, hours, minutes] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${total} s`;
}

/** 12.34 -> "12.3", 1234 -> "1,234" */
export function rate(value) {
  return value < 100 ? String(Number(value.toFixed(1))) : count(value);
}
