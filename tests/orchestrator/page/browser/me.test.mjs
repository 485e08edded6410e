// The contributor's page in Chromium.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LOOKS, harmless, open, passes, tabbed, world } from "./browser.mjs";

const SESSION = { "muster-session": world.token };

for (const look of LOOKS) {
  test(`earnings, verdicts and stake are readable and accessible: ${JSON.stringify(look)}`, async () => {
    const seen = await open("/me/", { ...look, storage: SESSION });
    const { page } = seen;
    await page.getByText("Dispute…").first().waitFor();
    const text = await page.locator("main").innerText();
    for (const each of world.texts) assert.ok(text.includes(each), `${each} is missing in ${text}`);
    await passes(seen, `me-${look.width}-${look.dark ? "dark" : "light"}`);
    await page.goto(`${world.url}/me/#work/${world.rejected}`);
    await page.getByText("token 17 is 42, not 43").waitFor();
    await page.getByRole("heading", { name: "Dispute this verdict" }).waitFor();
    await harmless(page);
    await passes(seen, `me-work-${look.width}-${look.dark ? "dark" : "light"}`);
    await seen.close();
  });
}

test("the keyboard leads to a verdict, its evidence, and the command that disputes it", async () => {
  const seen = await open("/me/", { storage: SESSION });
  const { page } = seen;
  await page.getByText("Dispute…").first().waitFor();
  const names = await tabbed(page);
  assert.ok(names.includes("Log out") && names.includes("Dispute…"), names.join("\n"));
  await page.getByRole("link", { name: "Dispute…" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText(`muster worker dispute ${world.rejected} --because "WHY"`).waitFor();
  const row = page.getByRole("region", { name: "Findings, with row and token" }).getByRole("row").nth(1);
  assert.match(await row.innerText(), /sampling\s+.*3\s+0\s+3\s+17/s);
  await page.getByRole("link", { name: "Skip to the content" }).focus();
  await page.keyboard.press("Enter");
  assert.match(await row.innerText(), /sampling/, "the skip link leaves the view as it is");
  await page.getByRole("link", { name: "← Your nodes" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Earnings per day" }).waitFor();
  await seen.close();
});

test("a link works once, and its code leaves the address bar", async () => {
  const seen = await open(`/me/#login=${world.code}`);
  await seen.page.getByRole("heading", { name: "Earnings per day" }).waitFor();
  assert.equal(new URL(seen.page.url()).hash, "");
  assert.ok(seen.asked.every((each) => !each.includes(world.code)));
  await seen.page.reload();
  await seen.page.getByRole("heading", { name: "Earnings per day" }).waitFor();
  const token = await seen.page.evaluate(() => sessionStorage.getItem("muster-session"));
  await seen.page.getByRole("button", { name: "Log out" }).click();
  await seen.page.getByText("You have logged out.").waitFor();
  assert.equal(await seen.page.evaluate(() => sessionStorage.length), 0);
  const after = await fetch(`${world.url}/v1/me`, { headers: { Authorization: `Bearer ${token}` } });
  assert.equal(after.status, 401);
  await seen.close();
  const again = await open(`/me/#login=${world.code}`);
  await again.page.getByText("This link was used already").waitFor();
  await again.close();
});

test("a revoked session is explained, and its data leave the page", async () => {
  const seen = await open("/me/", { storage: { "muster-session": world.ended } });
  await seen.page.getByText("This session is over, or was ended.").waitFor();
  await seen.page.getByText("muster worker page --revoke").waitFor();
  assert.equal(await seen.page.evaluate(() => sessionStorage.length), 0);
  seen.errors.length = 0; // Chromium writes the 401 to the console
  await passes(seen, "me-login-1280-light");
  await seen.close();
});

test("a page without a session asks nothing and names the command", async () => {
  const seen = await open("/me/", { width: 400, storage: { "muster-session": "mse_short" } });
  await seen.page.getByText("Log in with your node's key").waitFor();
  assert.deepEqual(seen.asked, []);
  await passes(seen, "me-login-400-light");
  await seen.close();
});

test("an open page sends less than one request per second", async () => {
  const seen = await open("/me/", { storage: SESSION, clock: true });
  await seen.page.getByText("Dispute…").first().waitFor();
  const before = seen.asked.length;
  for (let turn = 0; turn < 12; turn += 1) {
    await seen.page.clock.runFor(5000);
    await seen.page.waitForLoadState("networkidle");
  }
  const asked = seen.asked.length - before;
  assert.ok(asked >= 6 && asked <= 20, `${asked} requests in a minute`);
  await seen.close();
});
