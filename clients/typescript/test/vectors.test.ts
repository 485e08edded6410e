/** The client agrees with protocol/vectors.json, whose path is in MUSTER_VECTORS. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  type Address,
  answerMessage,
  checkAnswer,
  checkRequest,
  checksummed,
  drawTargets,
  fromHex,
  type Hex,
  InvalidError,
  inviteSigner,
  Key,
  leaseSigner,
  type Message,
  promptPositions,
  requestMessage,
  runId,
  samplingNoise,
  signingHash,
  signTypedData,
  signWork,
  slotSeed,
  type SlotSeedParts,
  structHash,
  toHex,
  TYPES,
  type TypeName,
  typedDataSigner,
  versionDigest,
  webhookSignature,
  workKey,
} from "../src/index.js";

// Groups have different fields; each check reads those of its group.
type Case = Record<string, any>;
interface Group {
  accepted: { input: Case; output: Case }[];
  refused: { what: string; input: Case; reason: string }[];
}

const file = JSON.parse(readFileSync(process.env["MUSTER_VECTORS"]!, "utf8")) as {
  keys: Record<string, { secret: Hex; address: Address }>;
  vectors: Record<string, Group>;
};
const keys = new Map(Object.values(file.keys).map(({ secret }) => new Key(secret)).map((key) => [key.address, key]));

/** Throws InvalidError `other-value` if a refused case claims a wrong result. */
function unlessClaimed(given: Case, result: Case): Case {
  if (given["claimed"] !== undefined) {
    assert.notDeepEqual(given["claimed"], result);
    throw new InvalidError("the claimed result is wrong", "other-value");
  }
  return result;
}

function mustBe(signer: string, expected: string): void {
  if (signer !== expected) throw new InvalidError(`${signer} signed`, "other-signer");
}

/** From a case's input to its output, as far as this client has the function; throws InvalidError with the reason. */
const CHECKS: Record<string, (given: Case) => Case> = {
  address: ({ text }) => {
    if (checksummed(text) !== text) throw new InvalidError("not in checksummed form", "not-checksummed");
    return { bytes: text.toLowerCase() };
  },
  "run-id": ({ name }) => ({ id: runId(name) }),
  "work-key": (given) => {
    const { pool_id: poolId, run, node, step, index } = given;
    return unlessClaimed(given, { key: workKey({ poolId, run, node, step, index }) });
  },
  "version-digest": ({ files }) => ({ digest: versionDigest(files) }),
  "request-signature": (given) => {
    const { method, target, headers } = given as { method: string; target: string; headers: Record<string, string> };
    const body = fromHex(given["body"]);
    const nowMs = given["receiver_time_ms"];
    const signer = checkRequest({ method, target, body, headers, receiver: given["receiver"], nowMs });
    const audience = headers["X-Muster-Audience"] as Address;
    const stamp = { timestampMs: headers["X-Muster-Timestamp"]!, nonce: headers["X-Muster-Nonce"]! };
    const message = requestMessage({ method, target, body, audience, ...stamp });
    assert.equal(toHex(keys.get(signer)!.signMessage(message)), headers["X-Muster-Signature"]);
    return { signer, message };
  },
  "response-signature": ({ headers, service, caller, nonce, status, body: hex }) => {
    const body = fromHex(hex);
    checkAnswer({ signature: headers["X-Muster-Signature"], service, caller, nonce, status, body });
    return { message: answerMessage({ caller, nonce, status, body }) };
  },
  "typed-data": ({ type, domain, message, signer, signature }) => {
    const name = (type as string).split("(")[0] as TypeName;
    assert.equal(TYPES[name], type);
    mustBe(typedDataSigner(name, message as Message, domain, signature), signer);
    assert.equal(signTypedData(keys.get(signer)!, name, message as Message, domain), signature);
    return {
      struct_hash: toHex(structHash(name, message as Message)),
      signing_hash: toHex(signingHash(name, message as Message, domain)),
    };
  },
  "webhook-signature": (given) => {
    const signature = webhookSignature(given["secret"], given["timestamp"], fromHex(given["body"]));
    return unlessClaimed(given, { signature });
  },
  "slot-seed": (given) => {
    const { chain_id: chainId, pool_id: poolId, run_id: run, ...rest } = given;
    return { seed: toHex(slotSeed({ chainId, poolId, runId: run, ...rest } as SlotSeedParts)) };
  },
  "prompt-positions": ({ seed, eligible, groups }) => {
    const positions = promptPositions(fromHex(seed), eligible);
    return { positions: Array.from({ length: groups as number }, () => positions.next().value) };
  },
  "target-lengths": ({ seed, targets, groups }) => ({ targets: drawTargets(fromHex(seed), targets, groups) }),
  "sampling-noise": ({ seed, sample, position, token }) => {
    const { word, noise } = samplingNoise(fromHex(seed), sample, position, token);
    const bits = new DataView(new ArrayBuffer(4));
    bits.setFloat32(0, noise);
    return { word: `0x${word.toString(16).padStart(8, "0")}`, noise_float32: toHex(new Uint8Array(bits.buffer)) };
  },
};

for (const [name, check] of Object.entries(CHECKS)) {
  const group = file.vectors[name]!;
  test(`${name}: accepted`, () => {
    assert.ok(group.accepted.length > 0);
    for (const { input, output } of group.accepted) assert.deepEqual(check(input), output);
  });
  test(`${name}: refused`, () => {
    assert.ok(group.refused.length > 0);
    for (const { what, input, reason } of group.refused) {
      assert.throws(() => check(input), { name: "InvalidError", code: reason }, what);
    }
  });
}

test("documents are signed as the vectors are", () => {
  const { document, orchestrator } = file.vectors["signed-lease"]!.accepted[0]!.input;
  assert.equal(leaseSigner(document), orchestrator);
  assert.notEqual(leaseSigner({ ...document, max_units: 4097 }), orchestrator);
  const invite = file.vectors["signed-invite"]!.accepted[0]!.input;
  assert.equal(inviteSigner(invite["document"]), invite["orchestrator"]);
  const claim = file.vectors["signed-work-claim"]!.accepted[0]!.input["document"];
  const node = keys.get(claim.lease.node)!;
  assert.deepEqual(signWork(node, claim.lease, claim.sha256, claim.units), claim);
  assert.throws(() => signWork(node, claim.lease, claim.sha256, 4097), { code: "too-many-units" });
});

test("a key does not show its secret", () => {
  const key = new Key(`0x${"01".repeat(32)}`);
  assert.doesNotMatch(`${key} ${JSON.stringify(key)} ${Object.values(key).join()}`, /0101/);
});
