/** secp256k1 keys and signatures as Ethereum uses them. */
import { secp256k1 } from "@noble/curves/secp256k1.js";
import { concatBytes, fromHex, type Hex, keccak, toHex, toInteger, utf8ToBytes } from "./bytes.js";
import { InvalidError } from "./errors.js";

/** Checksummed address (EIP-55). */
export type Address = Hex;

const HALF_ORDER = secp256k1.Point.Fn.ORDER >> 1n;

/** A signing key. Its text never shows the secret. */
export class Key {
  readonly address: Address;
  readonly #secret: Uint8Array;

  /** @param secret 32 bytes, or `0x` and 64 hex digits. */
  constructor(secret: Uint8Array | Hex) {
    this.#secret = typeof secret === "string" ? fromHex(secret) : Uint8Array.from(secret);
    this.address = addressOf(secp256k1.getPublicKey(this.#secret, false));
  }

  /** Generates a key with the platform's random numbers. */
  static generate(): Key {
    return new Key(secp256k1.utils.randomSecretKey());
  }

  /** Signs a hash of 32 bytes; returns 65 bytes r, s, v with a low s and v 27 or 28. */
  signHash(hash: Uint8Array): Uint8Array {
    const made = secp256k1.sign(hash, this.#secret, { prehash: false, format: "recovered", lowS: true });
    return concatBytes(made.subarray(1), Uint8Array.of(27 + made[0]!));
  }

  /** Signs text as a personal message (EIP-191). */
  signMessage(message: string): Uint8Array {
    return this.signHash(personalHash(message));
  }

  toString(): string {
    return `Key(${this.address})`;
  }

  toJSON(): string {
    return this.toString();
  }
}

/** Returns the hash that an EIP-191 personal signature signs. */
export function personalHash(message: string): Uint8Array {
  const bytes = utf8ToBytes(message);
  return keccak(concatBytes(utf8ToBytes(`\x19Ethereum Signed Message:\n${bytes.length}`), bytes));
}

/** Returns the address that signed a hash; throws InvalidError `bad-signature` if the signature is malformed. */
export function recover(hash: Uint8Array, signature: Uint8Array): Address {
  const v = signature[64];
  if (signature.length !== 65 || (v !== 27 && v !== 28)) {
    throw new InvalidError("a signature is 65 bytes, and the last one is 27 or 28", "bad-signature");
  }
  if (toInteger(signature.subarray(32, 64)) > HALF_ORDER) {
    throw new InvalidError("the signature has a high s", "bad-signature");
  }
  try {
    const recovered = concatBytes(Uint8Array.of(v - 27), signature.subarray(0, 64));
    const point = secp256k1.Signature.fromBytes(recovered, "recovered").recoverPublicKey(hash);
    return addressOf(point.toBytes(false));
  } catch {
    throw new InvalidError("the signature does not recover to a public key", "bad-signature");
  }
}

/** Returns the checksummed spelling of an address in hex; throws InvalidError if it is malformed. */
export function checksummed(text: string): Address {
  if (!/^0x[0-9a-fA-F]{40}$/.test(text)) {
    throw new InvalidError(`${text.slice(0, 80)} is not an address`, "invalid-input");
  }
  const digits = text.slice(2).toLowerCase();
  const hash = toHex(keccak(utf8ToBytes(digits))).slice(2);
  const spelled = [...digits].map((digit, at) => (parseInt(hash[at]!, 16) >= 8 ? digit.toUpperCase() : digit)).join("");
  const mixed = /[a-f]/.test(text.slice(2)) && /[A-F]/.test(text.slice(2));
  if (mixed && text !== `0x${spelled}`) {
    throw new InvalidError(`address ${text} has a wrong checksum`, "invalid-input");
  }
  return `0x${spelled}`;
}

function addressOf(publicKey: Uint8Array): Address {
  return checksummed(toHex(keccak(publicKey.subarray(1)).subarray(12)));
}
