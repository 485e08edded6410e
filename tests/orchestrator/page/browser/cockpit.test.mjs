// The owner's page in Chromium.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LOOKS, MARKUP, harmless, open, passes, tabbed, world } from "./browser.mjs";

const OWNER = { "muster-token": world.token };
const READER = { "muster-token": world.reader };
const VIEWS = [
  ["run", "Answers to held-out prompts, before and after", "of two lines"],
  ["run", null, "Estimated KL divergence to the policies that generated the rollouts, in nats per token: 0 at step 0, 0.000002 at step 2"],
  ["money", "Earnings and slashes of nodes", "1,234.75 MUST"],
  ["nodes", "Nodes of the pool", "healthy"],
  [`node/${world.node}`, null, "7 MUST"],
  [`node/${world.node}`, null, `zone=${MARKUP}`],
  ["tasks", "Tasks of the pool, oldest first", "hello"],
  [`task/${world.task}`, null, "python:3.11"],
  ["rollouts", "Submitted files of the step", "forged"],
  ["rollouts", null, "of step 2"],
  [`work/${world.forged}`, "Findings, with row and token", "token 17 is 42, not 43"],
  ["events", "Events of the pool, newest first", "payout.earned"],
];

// All views: two looks show both sizes and both themes.
for (const look of [LOOKS[1], LOOKS[2]]) {
  test(`all views are readable and accessible: ${JSON.stringify(look)}`, { timeout: 120_000 }, async () => {
    const seen = await open("/page/", { ...look, storage: OWNER });
    for (const [view, region, text] of VIEWS) {
      await seen.page.goto(`${world.url}/page/#${view}`);
      const place = region === null ? seen.page.locator("main") : seen.page.getByRole("region", { name: region });
      await place.getByText(text).first().waitFor();
      await harmless(seen.page);
      await passes(seen, `page-${view.split("/")[0]}-${look.width}-${look.dark ? "dark" : "light"}`);
    }
    await seen.close();
  });
}

test("sampled rollouts follow the chosen step", async () => {
  const seen = await open("/page/#rollouts", { storage: OWNER });
  const { page } = seen;
  await page.getByText("of step 2").waitFor();
  await page.getByLabel("Step", { exact: true }).fill("1");
  await page.keyboard.press("Enter");
  await page.getByText("of step 1").waitFor();
  await page.getByLabel("Step", { exact: true }).fill("77");
  await page.keyboard.press("Enter");
  await page.getByText("Step 77 has no samples").waitFor();
  await harmless(page);
  assert.deepEqual(seen.errors, []);
  await seen.close();
});

test("a task is posted, changed and stopped with the keyboard alone", async () => {
  const seen = await open("/page/#tasks", { storage: OWNER });
  const { page } = seen;
  await page.locator("summary").focus();
  await page.keyboard.press("Enter");
  const values = ["posted", "python:3.11", "python\n-c\nprint('a b')", "A=b=c", "3", "5"];
  for (const value of values) {
    await page.keyboard.press("Tab");
    await page.keyboard.press("Control+a");
    await page.keyboard.insertText(value);
  }
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: "posted" }).focus();
  await page.keyboard.press("Enter");
  await page.getByLabel("Nodes").waitFor();
  for (const [label, value] of [["Nodes", "2"], ["Priority", "7"]]) {
    await page.getByLabel(label, { exact: true }).focus();
    await page.keyboard.press("Control+a");
    await page.keyboard.insertText(value);
  }
  await page.keyboard.press("Enter");
  await page.getByText("Done: the task was changed.").waitFor();
  await page.getByRole("button", { name: "Stop…" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByText("It can be started again.").waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByText("Done: the task is being stopped.").waitFor();
  await page.getByRole("button", { name: "Start", exact: true }).waitFor();
  assert.deepEqual(seen.errors, []);
  await seen.close();
});

test("wrong values of a task are explained beside their field", async () => {
  const { page, close } = await open("/page/#tasks", { width: 400, storage: OWNER });
  await page.locator("summary").click();
  await page.getByLabel("Name", { exact: true }).fill("Not A Name");
  await page.getByRole("button", { name: "Post the task" }).click();
  await page.getByRole("alert").getByText("A name has 1 to 63 characters").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "task-name");
  await close();
});

test("events are filtered by kind and node", async () => {
  const seen = await open("/page/#events", { storage: OWNER });
  const rows = seen.page.getByRole("region", { name: "Events of the pool, newest first" }).getByRole("row");
  await seen.page.getByLabel("Show").selectOption("slash.");
  await seen.page.getByText("1 event found").waitFor();
  assert.match(await rows.nth(1).innerText(), /slash\.forgery/);
  await seen.page.getByLabel("Show").selectOption("verdict.");
  await seen.page.getByText("4 events found").waitFor();
  await seen.page.getByLabel("Node", { exact: true }).fill(world.node);
  await seen.page.keyboard.press("Enter");
  await seen.page.getByText("1 event found").waitFor();
  assert.match(await rows.nth(1).innerText(), /verdict\.forged/);
  await seen.close();
});

test("a token of scope read sees everything and changes nothing", async () => {
  const { page, close } = await open(`/page/#task/${world.task}`, { storage: READER });
  await page.getByText("Changes need a token of scope operate; this one has read.").waitFor();
  assert.ok(await page.getByRole("button", { name: "Stop…" }).isDisabled());
  assert.equal(await page.getByRole("button", { name: "Change" }).isVisible(), false);
  await page.goto(`${world.url}/page/#tasks`);
  await page.getByRole("link", { name: "hello" }).waitFor();
  assert.equal(await page.locator("summary").isVisible(), false);
  const names = await tabbed(page);
  assert.ok(names.includes("Money") && names.includes("hello"), names.join("\n"));
  await close();
});

test("a revoked token ends the session, and an open page sends at most one request per second", async () => {
  let revoked = false;
  const problem = { type: "about:blank", status: 401, code: "bad-token", detail: "the token is not known to this pool", hint: "" };
  const seen = await open("/page/#run", { storage: OWNER, clock: true });
  await seen.page.route("**/v1/**", (route) =>
    revoked
      ? route.fulfill({ status: 401, contentType: "application/problem+json", body: JSON.stringify(problem) })
      : route.continue(),
  );
  for (const view of ["run", "money", "nodes", "node/" + world.node, "tasks", "task/" + world.task, "rollouts", "events"]) {
    await seen.page.goto(`${world.url}/page/#${view}`);
    await seen.page.waitForTimeout(300);
    const before = seen.asked.length;
    for (let turn = 0; turn < 20; turn += 1) {
      await seen.page.clock.runFor(1000);
      await seen.page.waitForTimeout(30);
    }
    const asked = seen.asked.length - before;
    assert.ok(asked >= 1 && asked <= 20, `${view}: ${asked} requests in 20 seconds`);
  }
  revoked = true;
  await seen.page.clock.runFor(6000);
  await seen.page.getByText("The orchestrator does not know this token.").waitFor();
  assert.equal(await seen.page.evaluate(() => sessionStorage.length), 0);
  assert.ok(!(await seen.page.locator("body").innerText()).includes("hello"));
  await seen.close();
});
