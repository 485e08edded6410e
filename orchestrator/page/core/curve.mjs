// Geometry of a curve: positions of points, ticks and lines. view/chart.mjs draws it.

import { amount, precise } from "./format.mjs";

const TICKS = 4;
const FINEST = 1e-9; // relative size of a value range below which double precision is too coarse for ticks

/**
 * Returns the range of values on the vertical axis; its ends always differ, even if all values are equal.
 *
 * Shares are drawn from 0 to 1, unless `tight` is set.
 */
export function range(values, tight = false) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (high === low || high - low < FINEST * Math.max(tight ? 0 : 1, Math.abs(low), Math.abs(high))) return { low: low - 0.5, high: high + 0.5 };
  if (!tight && low >= 0 && high <= 1) return { low: 0, high: 1 };
  const pad = (high - low) * 0.05;
  return { low: low - pad, high: high + pad };
}

/** Returns at most six round numbers within a range. */
export function ticks(low, high) {
  const raw = (high - low) / TICKS;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step)
    found.push(Number(at.toPrecision(12)));
  return found;
}

/**
 * Returns the geometry of `points` (`{x, y}` in ascending x) in a box with room for ticks: `line` is the `d` of a path.
 *
 * Null with fewer than two points.
 */
export function curve(points, { width, height, left, bottom, top = 10, right = 12, tight = false, label = (value) => amount(value, 0) }) {
  if (points.length < 2) return null;
  const [first, last] = [points[0].x, points[points.length - 1].x];
  const { low, high } = range(points.map((point) => point.y), tight);
  const name = tight ? precise : amount;
  const x = (value) => round(left + ((value - first) / (last - first)) * (width - left - right));
  const y = (value) => round(top + ((high - value) / (high - low)) * (height - top - bottom));
  const line = points.map((point, index) => `${index ? "L" : "M"}${x(point.x)} ${y(point.y)}`).join("");
  const end = points[points.length - 1];
  return {
    line,
    end: { x: x(end.x), y: y(end.y), label: name(end.y) },
    across: ticks(low, high).map((value) => ({ at: y(value), label: name(value) })),
    along: ticks(first, last)
      .filter(Number.isInteger)
      .map((value) => ({ at: x(value), label: label(value) })),
  };
}

function round(value) {
  return Math.round(value * 10) / 10;
}
