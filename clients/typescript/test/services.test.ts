/** The clients talk to real services, whose places the environment names. */
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { DiscoveryClient, type Hex, Key, NodeClient, OwnerClient, type PoolEvent, type Task } from "../src/index.js";
import { capabilities, refusal, service, setting } from "./support.js";

const orchestrator = service("MUSTER_ORCHESTRATOR");
const discovery = service("MUSTER_DISCOVERY");
const pool_id = Number(setting("MUSTER_POOL"));
const node = new Key(setting("MUSTER_NODE_KEY") as Hex);
const owner = new OwnerClient(orchestrator.url, setting("MUSTER_TOKEN"));
const hello = { spec: { name: "hello", image: "busybox", replicas: 1 } };

let created: Task;
before(async () => {
  created = await owner.createTask(hello);
});

test("the owner lists, changes and deletes tasks", async () => {
  const path = { task_id: created.id };
  const names: string[] = [];
  for await (const task of owner.tasks()) names.push(task.spec.name);
  assert.ok(names.includes("hello"));
  const changed = await owner.call("patch", "/v1/tasks/{task_id}", { path, body: { priority: 5 } });
  assert.equal(changed.spec.priority, 5);
  const other = await owner.createTask({ spec: { ...hello.spec, name: "other" } });
  assert.equal(await owner.call("delete", "/v1/tasks/{task_id}", { path: { task_id: other.id } }), undefined);
  const gone = await refusal(owner.call("get", "/v1/tasks/{task_id}", { path: { task_id: other.id } }));
  assert.equal(gone.status, 404);
});

test("the owner follows events", async () => {
  const stop = new AbortController();
  let found: PoolEvent | undefined;
  for await (const event of owner.events("0-0", stop.signal)) {
    if (event.kind === "task.created" && event.task_id === created.id) {
      found = event;
      break;
    }
  }
  stop.abort();
  assert.equal(found?.detail, "hello");
});

test("refusals are problems with code, hint and fields", async () => {
  const reader = new OwnerClient(orchestrator.url, setting("MUSTER_READER"));
  assert.equal((await refusal(reader.createTask(hello))).code, "scope");
  const nobody = new OwnerClient(orchestrator.url, "mst_00000000_" + "x".repeat(43));
  const unknown = await refusal(nobody.createTask(hello));
  assert.deepEqual([unknown.status, unknown.code, unknown.retryable], [401, "bad-token", false]);
  assert.notEqual(unknown.hint, "");
});

test("a node sends signed heartbeats and believes only the orchestrator's answers", async () => {
  const client = new NodeClient(orchestrator.url, node, orchestrator.address);
  const heartbeat = { pool_id, worker_version: "typescript 0.1.0", draining: false, metrics: { "cpu.used": 0.5 } };
  let answer = await client.heartbeat(heartbeat);
  for (let round = 0; answer.state !== "healthy" && round < 200; round++) {
    await setTimeout(50); // the orchestrator reads the node's joining from the ledger
    answer = await client.heartbeat(heartbeat);
  }
  assert.equal(answer.state, "healthy", answer.reason);
  assert.ok(answer.next_interval_seconds > 0);
  const me = await client.call("get", "/v1/nodes/me", {});
  assert.equal(me.node.address, node.address);
  const step = await client.call("get", "/v1/run/step", {});
  assert.ok(step.run_id.startsWith("0x"));

  const wrong = new NodeClient(orchestrator.url, node, Key.generate().address);
  assert.equal((await refusal(wrong.heartbeat(heartbeat))).code, "wrong-audience");
  const stranger = new NodeClient(orchestrator.url, Key.generate(), orchestrator.address);
  assert.equal((await refusal(stranger.leaseSlot(0, 1))).status, 403);
});

test("a node registers at discovery and reads its invites", async () => {
  const client = new DiscoveryClient(discovery.url, node, discovery.address);
  const record = await client.register({ pool_id: Number(setting("MUSTER_DISCOVERY_POOL")), ...capabilities });
  assert.equal(record.address, node.address);
  assert.equal(record.registration.labels?.["region"], "eu");
  assert.deepEqual(await client.invites(0), []);
  const path = { node: Key.generate().address };
  assert.equal((await refusal(client.call("get", "/v1/nodes/{node}", { path }))).code, "another-node");
  assert.equal(await client.call("delete", "/v1/nodes/{node}", { path: { node: node.address } }), undefined);
});

// Compile-time checks: the generated types refuse a wrong path, method or body.
export function wrong(): void {
  // @ts-expect-error there is no such path
  void owner.call("get", "/v1/task", {});
  // @ts-expect-error the path has no such method
  void owner.call("put", "/v1/tasks", {});
  // @ts-expect-error an image is text
  void owner.call("post", "/v1/tasks", { body: { spec: { name: "hello", image: 1 } } });
  // @ts-expect-error the path needs its parameter
  void owner.call("get", "/v1/tasks/{task_id}", {});
}
