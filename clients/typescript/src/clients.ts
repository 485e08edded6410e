/** Clients of an orchestrator and of a discovery service. */
import type { components, paths as OrchestratorPaths } from "./generated/orchestrator.js";
import type { components as DiscoveryComponents, paths as DiscoveryPaths } from "./generated/discovery.js";
import { fromHex, type Hex, toHex } from "./bytes.js";
import { InvalidError } from "./errors.js";
import { bearer, randomId, ServiceClient, signed } from "./http.js";
import { type Address, checksummed, type Key } from "./keys.js";
import { type SigningDomain, signTypedData, structHash, typedDataSigner } from "./typed-data.js";

type Schemas = components["schemas"];
export type Registration = DiscoveryComponents["schemas"]["Registration-Input"];
export type NodeRecord = DiscoveryComponents["schemas"]["NodeRecord"];
export type NewTask = Schemas["NewTask"];
export type Task = Schemas["Task"];
export type PoolEvent = Schemas["PoolEvent"];
export type Heartbeat = Schemas["Heartbeat"];
export type HeartbeatAnswer = Schemas["HeartbeatAnswer"];
export type SlotGrant = Schemas["SlotGrant"];
export type SignedLease = Schemas["SignedLease"];
export type SignedInvite = Schemas["SignedInvite"];
export type SignedWorkClaim = Schemas["SignedWorkClaim"];
export type SubmissionReceipt = Schemas["SubmissionReceipt"];

/** A pool owner's client of the orchestrator, with a bearer token. `call` has every operation. */
export class OwnerClient extends ServiceClient<OrchestratorPaths> {
  constructor(url: string, token: string, options: { timeoutMs?: number } = {}) {
    super(url, bearer(token), options);
  }

  /** Posts a task. The same `idempotencyKey` gets the same task, for a day. */
  createTask(task: NewTask, idempotencyKey: string = randomId()): Promise<Task> {
    return this.call("post", "/v1/tasks", { body: task, headers: { "Idempotency-Key": idempotencyKey } });
  }

  /** Yields all tasks, oldest first. */
  async *tasks(): AsyncGenerator<Task> {
    let cursor: string | null | undefined;
    do {
      const page = await this.call("get", "/v1/tasks", { query: cursor === undefined ? {} : { cursor } });
      yield* page.tasks;
      cursor = page.next_cursor;
    } while (cursor !== null);
  }

  /** Follows the pool's events after an id (`0-0`: all that are kept). */
  async *events(after: string, signal: AbortSignal): AsyncGenerator<PoolEvent> {
    for await (const event of this.follow("/v1/events", { after }, signal)) yield event.data as PoolEvent;
  }
}

/**
 * A node's client of the orchestrator. Requests are signed, and answers must be signed by the orchestrator.
 */
export class NodeClient extends ServiceClient<OrchestratorPaths> {
  readonly #key: Key;

  /** @param orchestrator Address of the pool's orchestrator key on the ledger. */
  constructor(url: string, key: Key, orchestrator: Address, options: { timeoutMs?: number } = {}) {
    super(url, signed(key, orchestrator), options);
    this.#key = key;
  }

  heartbeat(heartbeat: Heartbeat): Promise<HeartbeatAnswer> {
    return this.call("post", "/v1/heartbeat", { body: heartbeat });
  }

  /** Leases a slot. The same `requestId` gets the same lease. */
  leaseSlot(step: number, groups: number, requestId: string = randomId()): Promise<SlotGrant> {
    return this.call("post", "/v1/slots", { body: { step, groups, request_id: requestId } });
  }

  /** Accepts an invite through the relayer, which pays the gas. Repeat it until the ledger has the membership. */
  join(invite: SignedInvite): Promise<Schemas["JoinReceipt"]> {
    const domain = { chainId: invite.chain_id, verifyingContract: checksummed(invite.contract) };
    const inviteHash = toHex(structHash("Invite", inviteMessage(invite)));
    const signature = signTypedData(this.#key, "Join", { inviteHash }, domain);
    return this.call("post", "/v1/joins", { body: { invite, signature } });
  }

  /**
   * Leaves the pool through the relayer, which pays the gas. Repeat it until the ledger has no membership.
   *
   * @param joins How often the node has joined the pool: `joins` of `ComputePools.membershipOf`.
   * @param domain Chain and address of the contract `ComputePools`.
   * @param validS Seconds until the ledger refuses the signature, at most a day.
   */
  leave(poolId: number, joins: number, domain: SigningDomain, validS = 600): Promise<Schemas["LeaveReceipt"]> {
    const [node, nonce, deadline] = [this.#key.address, joins, Math.floor(Date.now() / 1000) + validS];
    const signature = signTypedData(this.#key, "Leave", { poolId, node, nonce, deadline }, domain);
    return this.call("post", "/v1/leaves", { body: { pool_id: poolId, node, nonce, deadline, signature } });
  }

  /**
   * Submits an uploaded file as work under a lease.
   *
   * @param units Number of generated tokens in the file.
   */
  submit(lease: SignedLease, sha256: Hex, units: number): Promise<SubmissionReceipt> {
    const work = signWork(this.#key, lease, sha256, units);
    return this.call("post", "/v1/submissions", { body: { work } });
  }
}

/** A node's client of a discovery service. */
export class DiscoveryClient extends ServiceClient<DiscoveryPaths> {
  readonly #node: Address;

  /** @param service Address of the service's key, from your settings or `GET /v1/identity` over https. */
  constructor(url: string, key: Key, service: Address, options: { timeoutMs?: number } = {}) {
    super(url, signed(key, service), { timeoutMs: 45_000, ...options });
    this.#node = key.address;
  }

  /** Registers the node, or refreshes its record before it expires. */
  register(body: Registration): Promise<NodeRecord> {
    return this.call("put", "/v1/nodes/{node}", { path: { node: this.#node }, body });
  }

  /** Returns the node's invites; waits up to `waitS` seconds, at most 30, for the first one. */
  async invites(waitS = 25): Promise<SignedInvite[]> {
    const path = { node: this.#node };
    return (await this.call("get", "/v1/nodes/{node}/invites", { path, query: { wait: waitS } })).invites;
  }
}

/** Returns the address that signed an invite; compare it with the pool's orchestrator on the ledger. */
export function inviteSigner(invite: SignedInvite): Address {
  const domain = { chainId: invite.chain_id, verifyingContract: checksummed(invite.contract) };
  return typedDataSigner("Invite", inviteMessage(invite), domain, invite.signature as Hex);
}

/** Returns the address that signed a lease; compare it with the pool's orchestrator on the ledger. */
export function leaseSigner(lease: SignedLease): Address {
  const domain = { chainId: lease.chain_id, verifyingContract: checksummed(lease.contract) };
  return typedDataSigner("Lease", leaseMessage(lease), domain, lease.signature as Hex);
}

/** Signs a work claim; throws InvalidError if the lease does not allow so many units. */
export function signWork(key: Key, lease: SignedLease, sha256: Hex, units: number): SignedWorkClaim {
  if (!Number.isInteger(units) || units < 1 || units > lease.max_units) {
    throw new InvalidError(`the lease allows 1 to ${lease.max_units} units, not ${units}`, "too-many-units");
  }
  if (fromHex(sha256).length !== 32) throw new InvalidError("a SHA-256 has 32 bytes", "invalid-input");
  const domain = { chainId: lease.chain_id, verifyingContract: checksummed(lease.contract) };
  const leaseHash = toHex(structHash("Lease", leaseMessage(lease)));
  const signature = signTypedData(key, "Work", { leaseHash, sha256Hash: sha256, units }, domain);
  return { lease, sha256, units, signature };
}

function inviteMessage(invite: SignedInvite): Record<string, string | number> {
  const { pool_id: poolId, domain_id: domainId, node, nonce, expiry, url } = invite;
  return { poolId, domainId, node, nonce, expiry, url };
}

function leaseMessage(lease: SignedLease): Record<string, string | number> {
  const { run, step, index, node, version, digest, salt, groups, expiry } = lease;
  const { pool_id: poolId, beacon_block: beaconBlock, max_units: maxUnits } = lease;
  return { poolId, run, step, index, node, version, digest, beaconBlock, salt, groups, maxUnits, expiry };
}
