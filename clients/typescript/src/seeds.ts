/** Seed of a slot and the draws made from it (docs/rollouts.md). */
import { concatBytes, fromHex, type Hex, sha256, toBytes, toInteger, utf8ToBytes } from "./bytes.js";
import { InvalidError } from "./errors.js";

export interface SlotSeedParts {
  chainId: number | bigint;
  poolId: number | bigint;
  runId: Hex;
  step: number | bigint;
  node: Hex;
  index: number | bigint;
  digest: Hex;
  beacon: Hex;
  salt: Hex;
}

/** Returns the 32 bytes of a slot's seed. */
export function slotSeed(parts: SlotSeedParts): Uint8Array {
  return sha256(
    concatBytes(
      utf8ToBytes("muster-rollout-v2"),
      integer(parts.chainId, 8),
      integer(parts.poolId, 8),
      fromHex(parts.runId),
      integer(parts.step, 8),
      fromHex(parts.node),
      integer(parts.index, 4),
      fromHex(parts.digest),
      fromHex(parts.beacon),
      fromHex(parts.salt),
    ),
  );
}

/** Yields positions in the table of eligible prompts, endlessly. */
export function* promptPositions(seed: Uint8Array, eligible: number): Generator<number, never> {
  if (eligible < 1) throw new InvalidError("there are no eligible prompts", "invalid-input");
  const words = randomWords("muster-prompts-v1", seed);
  for (;;) {
    const moved = new Map<number, number>();
    for (let place = 0; place < eligible; place++) {
      const other = place + below(words, eligible - place);
      yield moved.get(other) ?? other;
      moved.set(other, moved.get(place) ?? place);
    }
  }
}

/** Draws a target length for each group. */
export function drawTargets(seed: Uint8Array, targets: readonly number[], groups: number): number[] {
  if (targets.length === 0 || groups < 1) throw new InvalidError("there is nothing to draw", "invalid-input");
  const words = randomWords("muster-targets-v1", seed);
  return Array.from({ length: groups }, () => targets[below(words, targets.length)]!);
}

/** Returns the Philox word of one token, and its Gumbel noise in single precision. */
export function samplingNoise(
  seed: Uint8Array,
  sample: number,
  position: number,
  token: number,
): { word: number; noise: number } {
  if (seed.length !== 32) throw new InvalidError("a seed has 32 bytes", "invalid-input");
  const digest = sha256(concatBytes(utf8ToBytes("muster-sampling-v1"), seed, integer(sample, 4)));
  const view = new DataView(digest.buffer, digest.byteOffset);
  const [d0, d1, d2, d3] = [0, 4, 8, 12].map((at) => view.getUint32(at)) as [number, number, number, number];
  const word = philox([token >>> 2, position, d2, d3], [d0, d1])[token & 3]!;
  return { word, noise: Math.fround(-Math.log(-Math.log((word + 0.5) * 2 ** -32))) };
}

/** Philox4x32-10: maps a counter and a key to four words of 32 bits. */
export function philox(counter: readonly [number, number, number, number], key: readonly [number, number]): number[] {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < 10; round++) {
    const first = BigInt(c0) * 0xd2511f53n;
    const second = BigInt(c2) * 0xcd9e8d57n;
    const high = [Number(first >> 32n), Number(second >> 32n)] as const;
    const low = [Number(first & 0xffffffffn), Number(second & 0xffffffffn)] as const;
    [c0, c1, c2, c3] = [(high[1] ^ c1 ^ k0) >>> 0, low[1], (high[0] ^ c3 ^ k1) >>> 0, low[0]];
    [k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0];
  }
  return [c0, c1, c2, c3];
}

function* randomWords(tag: string, seed: Uint8Array): Generator<bigint, never> {
  if (seed.length !== 32) throw new InvalidError("a seed has 32 bytes", "invalid-input");
  for (let counter = 0; ; counter++) {
    const block = sha256(concatBytes(utf8ToBytes(tag), seed, toBytes(counter, 8)));
    for (let at = 0; at < 32; at += 8) yield toInteger(block.subarray(at, at + 8));
  }
}

function below(words: Generator<bigint, never>, bound: number): number {
  const whole = (1n << 64n) - ((1n << 64n) % BigInt(bound));
  for (;;) {
    const word = words.next().value;
    if (word < whole) return Number(word % BigInt(bound));
  }
}

function integer(value: number | bigint, length: number): Uint8Array {
  try {
    return toBytes(value, length);
  } catch {
    throw new InvalidError(`${value} does not fit in ${length} bytes`, "invalid-input");
  }
}
