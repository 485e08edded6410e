/** Conversions between bytes, hex and text. */
import { keccak_256 } from "@noble/hashes/sha3.js";
import { sha256 as nobleSha256 } from "@noble/hashes/sha2.js";
import { bytesToHex, concatBytes, hexToBytes, utf8ToBytes } from "@noble/hashes/utils.js";

export { concatBytes, utf8ToBytes };

/** Bytes as text: `0x` and lower-case hex digits. */
export type Hex = `0x${string}`;

/** Returns bytes as `0x` and lower-case hex digits. */
export function toHex(bytes: Uint8Array): Hex {
  return `0x${bytesToHex(bytes)}`;
}

/** Returns the bytes of a text of `0x` and hex digits. */
export function fromHex(text: string): Uint8Array {
  return hexToBytes(text.replace(/^0x/, ""));
}

/** Returns an integer as big-endian bytes; throws RangeError if it does not fit. */
export function toBytes(value: bigint | number, length: number): Uint8Array {
  const number = BigInt(value);
  if (number < 0n || number >= 1n << BigInt(8 * length)) {
    throw new RangeError(`${number} does not fit in ${length} bytes`);
  }
  return hexToBytes(number.toString(16).padStart(2 * length, "0"));
}

/** Returns big-endian bytes as an integer. */
export function toInteger(bytes: Uint8Array): bigint {
  return BigInt(toHex(bytes));
}

export function keccak(bytes: Uint8Array): Uint8Array {
  return keccak_256(bytes);
}

export function sha256(bytes: Uint8Array): Uint8Array {
  return nobleSha256(bytes);
}
