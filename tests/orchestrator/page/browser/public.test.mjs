// The public page in Chromium.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LOOKS, MARKUP, harmless, open, passes, tabbed, world } from "./browser.mjs";

for (const look of LOOKS) {
  test(`the public page is readable and accessible: ${JSON.stringify(look)}`, async () => {
    const seen = await open("/public/", look);
    const { page } = seen;
    await page.getByRole("heading", { name: "Providers" }).waitFor();
    assert.match(await page.title(), /^Pool 7 · main · Muster$/);
    const text = await page.locator("main").innerText();
    for (const each of world.texts) assert.ok(text.includes(each), `${each} is missing in ${text}`);
    await passes(seen, `public-${look.width}-${look.dark ? "dark" : "light"}`);
    await seen.close();
  });
}

test("the keyboard reaches all commands, and Enter copies one", async () => {
  const { page, close } = await open("/public/");
  await page.getByRole("heading", { name: "Join" }).waitFor();
  const names = await tabbed(page);
  assert.ok(names.filter((name) => name.startsWith("Copy the command muster worker init")).length === 2, names.join("\n"));
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.getByRole("button", { name: /Copy the command muster worker run/ }).focus();
  await page.keyboard.press("Enter");
  await page.getByText("Copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "muster worker run");
  await close();
});

test("a page open for an hour asks four times a minute, without credentials", async () => {
  const seen = await open("/public/", { clock: true });
  await seen.page.getByRole("heading", { name: "Join" }).waitFor();
  const answered = () => seen.page.waitForLoadState("networkidle");
  const before = seen.asked.length;
  for (let turn = 0; turn < 8; turn += 1) {
    await seen.page.clock.runFor(15_000);
    await answered();
  }
  const asked = seen.asked.length - before;
  assert.ok(asked >= 4 && asked <= 9, `${asked} requests in two minutes`);
  assert.deepEqual([...new Set(seen.asked)], [`GET ${world.url}/v1/public`]);
  const cookies = await seen.page.context().cookies();
  assert.deepEqual(cookies, []);
  await seen.close();
});

test("hostile figures become text, and an orchestrator that is down is told", async () => {
  const summary = { ...world.summary, run: MARKUP, url: MARKUP, providers: [{ ...world.summary.providers[0], provider: MARKUP, earned: MARKUP }] };
  let down = false;
  const routes = {
    "**/v1/public": () => (down ? { status: 503, contentType: "text/html", body: MARKUP } : { body: JSON.stringify(summary) }),
  };
  const seen = await open("/public/", { routes, clock: true });
  await seen.page.getByText("<img src=x").first().waitFor();
  await harmless(seen.page);
  down = true;
  await seen.page.clock.runFor(16_000);
  await seen.page.getByRole("alert").getByText(/This page continues when the orchestrator answers again/).waitFor();
  await harmless(seen.page);
  await seen.close();
});
