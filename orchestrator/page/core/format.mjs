// Formats times, sizes and names for people.

import { numberOf, shown } from "./text.mjs";

export const NOTHING = "–";
const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const MOST_DIGITS = 12; // more digits of small numbers are shown as 0
const LATEST_MS = 8.64e15; // the latest time that Date can represent

/** Formats a duration: `42 s`, `5 min`, `3 h 20 min`, `12 d`. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 2 * MINUTE) return `${whole} s`;
  if (whole < 2 * HOUR) return `${Math.floor(whole / MINUTE)} min`;
  if (whole < 2 * DAY) {
    const minutes = Math.floor((whole % HOUR) / MINUTE);
    return `${Math.floor(whole / HOUR)} h${minutes ? ` ${minutes} min` : ""}`;
  }
  return `${Math.floor(whole / DAY)} d`;
}

/** Formats an age: `5 s ago`; arguments are in milliseconds. A future time is `now`, because clocks differ slightly. */
export function ago(moment, now) {
  const from = numberOf(moment);
  if (from === null) return NOTHING;
  return now - from < 1000 ? "now" : `${span((now - from) / 1000)} ago`;
}

/** Returns the local time of day, with the date if it is not that of `now`. */
export function clock(moment, now) {
  const at = numberOf(moment);
  if (at === null || Math.abs(at) > LATEST_MS) return NOTHING;
  const date = new Date(at);
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  return date.toDateString() === new Date(now).toDateString() ? time : `${day(date)} ${time}`;
}

function day(date) {
  return [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** Formats a number: `1,234`, `0.875`, `2.5e+12`. */
export function amount(value, digits = 3) {
  const number = numberOf(value);
  if (number === null) return NOTHING;
  if (Math.abs(number) >= 1e12) return number.toExponential(1);
  return number.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** Formats a number with three significant digits, or all digits of a whole number: `0.5`, `0.0000123`, `1,378`. */
export function precise(value) {
  const number = numberOf(value);
  if (number === null || number === 0) return amount(number === null ? value : 0);
  return amount(number, Math.min(MOST_DIGITS, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(number))))));
}

/** Formats a number of bytes: `31.2 GiB`. */
export function size(bytes) {
  let left = numberOf(bytes);
  if (left === null) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(left) >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${left.toLocaleString("en-US", { maximumFractionDigits: left < 10 && unit > 0 ? 1 : 0 })} ${units[unit]}`;
}

/** Shortens an address or a digest; callers show the full text as a tooltip. */
export function short(name) {
  const text = shown(name, 80);
  return text.length > 14 ? `${text.slice(0, 6)}…${text.slice(-4)}` : text;
}

/** Formats a number with its noun: `1 node`, `2 nodes`. */
export function count(number, one, many = `${one}s`) {
  return `${amount(number, 0)} ${number === 1 ? one : many}`;
}

const MUST = /^(-?)(\d{1,60})(?:\.(\d{1,18}))?$/;
const LEAST_DIGITS = 9; // smaller amounts are shown as less than the last of these digits
const SECONDS_PER_DAY = 86_400;

/** Formats an amount of MUST, which is a decimal number as text: `1,234.5678 MUST`; smaller digits are cut off. */
export function money(text, unit = " MUST") {
  const match = typeof text === "string" ? MUST.exec(text) : null;
  if (match === null) return NOTHING;
  const [, sign, whole, fraction = ""] = match;
  const zeros = /^0*/.exec(fraction)[0].length;
  if (/^0+$/.test(whole) && zeros >= LEAST_DIGITS && zeros < fraction.length) return `${sign}< 0.${"0".repeat(LEAST_DIGITS - 1)}1${unit}`;
  const digits = whole === "0" ? zeros + 4 : 4;
  const kept = fraction.slice(0, digits).replace(/0+$/, "");
  return `${sign}${whole.replace(/\B(?=(\d{3})+$)/g, ",")}${kept ? `.${kept}` : ""}${unit}`;
}

/** Returns an amount of MUST as a number, for charts; null if it is none. */
export function moneyNumber(text) {
  return typeof text === "string" && MUST.test(text) ? Number(text) : null;
}

/** Returns the date of a day that is counted from 1970 in UTC: `2026-11-28`. */
export function date(days) {
  const at = numberOf(days);
  return at === null || at * SECONDS_PER_DAY * 1000 > LATEST_MS ? NOTHING : new Date(at * SECONDS_PER_DAY * 1000).toISOString().slice(0, 10);
}
