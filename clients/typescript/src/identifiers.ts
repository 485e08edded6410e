/** Ids and hashes: run id, work key, version digest, webhook signatures. */
import { hmac } from "@noble/hashes/hmac.js";
import { sha256 as nobleSha256 } from "@noble/hashes/sha2.js";
import { concatBytes, fromHex, type Hex, keccak, sha256, toBytes, toHex, utf8ToBytes } from "./bytes.js";
import { InvalidError } from "./errors.js";
import type { Address } from "./keys.js";

/** Returns the id of a run from its name. */
export function runId(name: string): Hex {
  if (/^0x[0-9a-f]{64}$/i.test(name)) return name.toLowerCase() as Hex;
  const bytes = utf8ToBytes(name);
  if (bytes.length < 1 || bytes.length > 64) {
    throw new InvalidError(`a run's name has 1 to 64 bytes, not ${bytes.length}`, "invalid-input");
  }
  return toHex(sha256(concatBytes(utf8ToBytes("muster-run-v1"), bytes)));
}

/** Returns the key under which the ledger stores a piece of work. */
export function workKey(work: {
  poolId: number | bigint;
  run: Hex;
  node: Address;
  step: number | bigint;
  index: number | bigint;
}): Hex {
  const node = concatBytes(new Uint8Array(12), fromHex(work.node));
  const words = [toBytes(work.poolId, 32), fromHex(work.run), node, toBytes(work.step, 32), toBytes(work.index, 32)];
  return toHex(keccak(concatBytes(...words)));
}

/** One file of a version; `sha256` has no `0x`. */
export interface VersionFile {
  path: string;
  size: number;
  sha256: string;
}

/** Returns the digest of a version from its files. */
export function versionDigest(files: readonly VersionFile[]): Hex {
  const sorted = [...files].sort((one, other) => (one.path < other.path ? -1 : one.path > other.path ? 1 : 0));
  const paths = new Set(sorted.map((file) => file.path));
  const good = (file: VersionFile): boolean =>
    file.path.length <= 255 &&
    file.path.split("/").every((part) => /^[A-Za-z0-9_][A-Za-z0-9_.+-]*$/.test(part)) &&
    Number.isInteger(file.size) &&
    file.size >= 0 &&
    /^[0-9a-f]{64}$/.test(file.sha256);
  if (sorted.length < 1 || sorted.length > 4096 || paths.size !== sorted.length || !sorted.every(good)) {
    throw new InvalidError("the files are no version: check number, paths, sizes and hashes", "invalid-input");
  }
  return toHex(sha256(utf8ToBytes(sorted.map((file) => `${file.path} ${file.size} ${file.sha256}\n`).join(""))));
}

/** Returns the value of the header X-Muster-Webhook-Signature; compare it in constant time. */
export function webhookSignature(secret: string, timestamp: string, body: Uint8Array): string {
  const message = concatBytes(utf8ToBytes(`${timestamp}.`), body);
  return toHex(hmac(nobleSha256, utf8ToBytes(secret), message)).slice(2);
}
