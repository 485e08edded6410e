/** Signed requests and answers (docs/protocol.md, "Signed requests"). */
import { randomBytes } from "@noble/hashes/utils.js";
import { fromHex, sha256, toHex } from "./bytes.js";
import { InvalidError } from "./errors.js";
import { type Address, checksummed, type Key, personalHash, recover } from "./keys.js";

const SIGNATURE = /^0x[0-9a-f]{130}$/;
const CLOCK_WINDOW_MS = 60_000;

/** The part of a request that its signature covers. */
export interface RequestLine {
  method: string;
  /** Path and query exactly as sent. */
  target: string;
  body: Uint8Array;
}

/** Returns the text that the signature of a request covers. */
export function requestMessage(
  line: RequestLine & { audience: Address; timestampMs: number | string; nonce: string },
): string {
  const body = toHex(sha256(line.body)).slice(2);
  return ["muster-request-v1", line.audience, line.method, line.target, body, line.timestampMs, line.nonce].join("\n");
}

/** Returns the text that the signature of an answer covers. */
export function answerMessage(answer: { caller: Address; nonce: string; status: number; body: Uint8Array }): string {
  const body = toHex(sha256(answer.body)).slice(2);
  return ["muster-response-v1", answer.caller, answer.nonce, answer.status, body].join("\n");
}

/**
 * Signs a request; returns its five headers.
 *
 * @param nonce 32 lower-case hex digits; random by default.
 */
export function signRequest(
  key: Key,
  line: RequestLine & { audience: Address; timestampMs?: number; nonce?: string },
): Record<string, string> {
  const timestampMs = line.timestampMs ?? Date.now();
  const nonce = line.nonce ?? toHex(randomBytes(16)).slice(2);
  return {
    "X-Muster-Address": key.address,
    "X-Muster-Audience": line.audience,
    "X-Muster-Timestamp": String(timestampMs),
    "X-Muster-Nonce": nonce,
    "X-Muster-Signature": toHex(key.signMessage(requestMessage({ ...line, timestampMs, nonce }))),
  };
}

/** Checks a request as a service does; returns its signer. Replays are not detected. */
export function checkRequest(
  line: RequestLine & { headers: Readonly<Record<string, string>>; receiver: Address; nowMs: number },
): Address {
  const header = (name: string, form: RegExp): string => {
    const value = line.headers[name];
    if (value === undefined) {
      throw new InvalidError(`the request has no ${name} header`, "unsigned");
    }
    if (!form.test(value) || (/Address|Audience/.test(name) && checksummed(value.toLowerCase()) !== value)) {
      throw new InvalidError(`${name} is not in its canonical form`, "malformed-header");
    }
    return value;
  };
  const signer = header("X-Muster-Address", /^0x[0-9a-fA-F]{40}$/);
  const audience = header("X-Muster-Audience", /^0x[0-9a-fA-F]{40}$/) as Address;
  const timestampMs = header("X-Muster-Timestamp", /^[1-9][0-9]{11,14}$/);
  const nonce = header("X-Muster-Nonce", /^[0-9a-f]{32}$/);
  const signature = header("X-Muster-Signature", SIGNATURE);
  if (Math.abs(Number(timestampMs) - line.nowMs) > CLOCK_WINDOW_MS) {
    throw new InvalidError("the request's time is more than 60 s off", "clock");
  }
  const message = requestMessage({ ...line, audience, timestampMs, nonce });
  if (recover(personalHash(message), fromHex(signature)) !== signer) {
    throw new InvalidError(`${signer} did not sign this request`, "bad-signature");
  }
  if (audience !== line.receiver) {
    throw new InvalidError(`the request was signed for ${audience}`, "wrong-audience");
  }
  return signer as Address;
}

/** Checks that `service` signed this answer to this request; throws InvalidError otherwise. */
export function checkAnswer(answer: {
  signature: string | null | undefined;
  service: Address;
  caller: Address;
  nonce: string;
  status: number;
  body: Uint8Array;
}): void {
  if (!SIGNATURE.test(answer.signature ?? "")) {
    throw new InvalidError(`the answer has no signature of ${answer.service}`, "unsigned-answer");
  }
  let signer: Address | undefined;
  try {
    signer = recover(personalHash(answerMessage(answer)), fromHex(answer.signature!));
  } catch (error) {
    if (!(error instanceof InvalidError)) throw error;
  }
  if (signer !== answer.service) {
    throw new InvalidError(`the answer was not signed by ${answer.service}`, "forged-answer");
  }
}
