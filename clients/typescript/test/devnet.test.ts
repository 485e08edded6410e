/** A node and the pool's owner on a whole devnet: chain, contracts, discovery and orchestrator. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import {
  DiscoveryClient,
  type Hex,
  inviteSigner,
  Key,
  leaseSigner,
  type NewTask,
  NodeClient,
  OwnerClient,
  randomId,
  sha256,
  type SignedInvite,
  type SigningDomain,
  toHex,
  utf8ToBytes,
  workKey,
} from "../src/index.js";
import { capabilities, refusal, service, setting } from "./support.js";

const orchestrator = service("MUSTER_ORCHESTRATOR");
const discovery = service("MUSTER_DISCOVERY");
const pool_id = Number(setting("MUSTER_POOL"));
const key = new Key(setting("MUSTER_NODE_KEY") as Hex);
const path = { node: key.address };
const finder = new DiscoveryClient(discovery.url, key, discovery.address);
const node = new NodeClient(orchestrator.url, key, orchestrator.address);
const owner = new OwnerClient(orchestrator.url, setting("MUSTER_TOKEN"));
const reader = new OwnerClient(orchestrator.url, setting("MUSTER_READER"));

/** Repeats a call until its answer is as wanted. */
async function until<T>(what: string, call: () => Promise<T>, wanted: (answer: T) => boolean): Promise<T> {
  for (let round = 0; round < 400; round++) {
    const answer = await call();
    if (wanted(answer)) return answer;
    await setTimeout(100);
  }
  return assert.fail(`not in time: ${what}`);
}

function beat(draining = false): ReturnType<NodeClient["heartbeat"]> {
  return node.heartbeat({ pool_id, worker_version: "typescript 0.1.0", draining });
}

function isCarried(receipt: { state: string; reason?: string | null }): boolean {
  assert.notEqual(receipt.state, "refused", receipt.reason ?? "");
  return receipt.state === "carried";
}

let isBroken = false;
/** A test that needs the state that the ones before it have made; it is skipped if one of them failed. */
function step(name: string, run: () => Promise<void>): void {
  void test(name, async (context) => {
    if (isBroken) return context.skip("an earlier step failed");
    isBroken = true;
    await run();
    isBroken = false;
  });
}

const stop = new AbortController();
const kinds = new Set<string>();
/** Collects the kinds of this node's events while the other tests run. */
const following = (async () => {
  for await (const event of reader.events("0-0", stop.signal)) if (event.node === key.address) kinds.add(event.kind);
})().catch((error: Error) => assert.equal(error.name, "AbortError"));
after(async () => {
  stop.abort();
  await following;
});

let invite: SignedInvite;
let domain: SigningDomain;

step("a node reads how to join the pool, registers at discovery, is invited and joins", async () => {
  const joining = await node.call("get", "/v1/joining", {});
  assert.equal(joining.pool_id, pool_id);
  assert.ok(joining.discovery.some((url) => url.startsWith(discovery.url)));
  await finder.register({ pool_id, ...capabilities });
  [invite] = (await finder.invites(25)) as [SignedInvite];
  assert.equal(inviteSigner(invite), orchestrator.address);
  assert.deepEqual([invite.node, invite.pool_id, invite.url], [key.address, pool_id, orchestrator.url]);
  domain = { chainId: invite.chain_id, verifyingContract: invite.contract as Hex };
  await until("the join is on the ledger", () => node.join(invite), isCarried);
  const answer = await until("the node is healthy", () => beat(), ({ state }) => state === "healthy");
  assert.ok(answer.next_interval_seconds > 0);
});

step("a node leases slots, returns one, and submits the work of the other to the ledger", async () => {
  const digest = setting("MUSTER_DIGEST");
  const adopted = await owner.call("put", "/v1/run/checkpoint", { body: { version: 0, digest, units_per_group: 100 } });
  assert.equal(adopted.digest, digest);
  const open = await until("a step needs rollouts", () => node.call("get", "/v1/run/step", {}), ({ need }) => need > 0);
  const id = randomId();
  const { lease } = await node.leaseSlot(open.step, 1, id);
  assert.equal(leaseSigner(lease), orchestrator.address);
  assert.deepEqual((await node.leaseSlot(open.step, 1, id)).lease, lease);
  const other = (await node.leaseSlot(open.step, 1)).lease;
  assert.notEqual(other.index, lease.index);
  const slots = [{ step: other.step, index: other.index }];
  await node.call("post", "/v1/slots/release", { body: { slots } });

  const file = utf8ToBytes("no rollouts, and no validator reads them");
  const digestOfFile = toHex(sha256(file));
  const slot = { step: lease.step, index: lease.index };
  const ticket = await node.call("post", "/v1/uploads", { body: { sha256: digestOfFile, size: file.length, slot } });
  const sent = await fetch(ticket.url!, { method: "PUT", headers: ticket.headers ?? {}, body: file });
  assert.ok(sent.ok, await sent.text());
  await until("the work is on the ledger", () => node.submit(lease, digestOfFile, 7), isCarried);
  const work = { poolId: pool_id, run: lease.run as Hex, node: key.address, step: lease.step, index: lease.index };
  const receipt = await node.call("get", "/v1/submissions/{key}", { path: { key: workKey(work) } });
  assert.equal(receipt.state, "carried");
  const mine = () => node.call("get", "/v1/nodes/me/leases", {});
  const states = (leases: { state: string }[]): string => leases.map(({ state }) => state).sort().join();
  await until("the lease is used", mine, ({ leases }) => states(leases) === "released,submitted");
});

step("the owner sees the node, and posts each task once", async () => {
  const { nodes } = await owner.call("get", "/v1/nodes", { query: { state: ["healthy"] } });
  assert.ok(nodes.some(({ address }) => address === key.address));
  const spec: NewTask["spec"] = { name: "elsewhere", image: "busybox", selector: { labels: { region: "moon" } } };
  const [id, tasks] = [randomId(), []] as [string, string[]];
  const task = await owner.createTask({ spec }, id);
  assert.equal((await owner.createTask({ spec }, id)).id, task.id);
  assert.equal((await refusal(owner.createTask({ spec: { ...spec, name: "other" } }, id))).status, 409);
  for await (const each of reader.tasks()) tasks.push(each.id);
  assert.equal(tasks.filter((each) => each === task.id).length, 1);
  assert.equal((await refusal(reader.createTask({ spec }))).code, "scope");
  const one = { path: { task_id: task.id } };
  const stale = await refusal(owner.call("delete", "/v1/tasks/{task_id}", { ...one, headers: { "If-Match": '"0"' } }));
  assert.equal(stale.status, 412);
  await owner.call("delete", "/v1/tasks/{task_id}", one);
});

step("a node drains, leaves through the relayer and signs off; then the owner bans it", async () => {
  await until("the node drains", () => beat(true), ({ state }) => state === "draining");
  await until("the exit is on the ledger", () => node.leave(pool_id, 1, domain), isCarried);
  assert.equal((await refusal(node.leave(pool_id, 1, { ...domain, chainId: 1 }))).status, 422);
  await finder.call("delete", "/v1/nodes/{node}", { path });
  const ban = { path, body: { reason: "a test" } };
  assert.equal((await refusal(reader.call("post", "/v1/nodes/{node}/ban", ban))).code, "scope");
  await owner.call("post", "/v1/nodes/{node}/ban", ban);
  const view = () => reader.call("get", "/v1/nodes/{node}", { path });
  const banned = await until("the node is banned", view, ({ state }) => state === "banned");
  assert.equal(banned.member, false);
  assert.equal((await beat()).state, "banned");
  await owner.call("post", "/v1/nodes/{node}/unban", { path });
  assert.notEqual((await view()).state, "banned");
});

step("the reader followed the node's events", async () => {
  const wanted = ["node.invited", "node.joined", "node.healthy", "node.draining", "node.banned"];
  await until(`${wanted.join()}, not only ${[...kinds].join()}`, async () => kinds, () => wanted.every((kind) => kinds.has(kind)));
});
