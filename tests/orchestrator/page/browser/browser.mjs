// Shared parts of the browser tests: Chromium, pages of several sizes and themes, and checks that each page has to pass.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before } from "node:test";

const require = createRequire(`${process.env.MUSTER_NODE_MODULES}/`);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const world = JSON.parse(process.env.MUSTER_WORLD);
/** Chromium aborts all requests when an interface of the machine changes, as Docker's tests cause; the page is loaded again. */
const NETWORK_CHANGED = "ERR_NETWORK_CHANGED";

export const LOOKS = [
  { width: 1280, dark: false },
  { width: 1280, dark: true },
  { width: 400, dark: false },
  { width: 400, dark: true },
];

let chrome = null;
before(async () => {
  chrome = await chromium.launch({ executablePath: process.env.MUSTER_CHROMIUM, args: ["--no-sandbox"] });
});
after(() => chrome?.close());

/** Opens a page below the orchestrator's URL; collects its requests to the API, its errors and blocked resources. */
export async function open(path, { width = 1280, dark = false, storage = {}, routes = {}, clock = false } = {}) {
  const context = await chrome.newContext({
    viewport: { width, height: 900 },
    colorScheme: dark ? "dark" : "light",
    reducedMotion: "reduce",
  });
  await context.addInitScript((kept) => {
    for (const [name, value] of Object.entries(kept)) sessionStorage.setItem(name, value);
  }, storage);
  const page = await context.newPage();
  if (clock) await page.clock.install();
  const seen = { page, asked: [], errors: [], close: () => context.close() };
  page.on("request", (request) => request.url().includes("/v1/") && seen.asked.push(`${request.method()} ${request.url()}`));
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  let changes = 0;
  page.on("console", (message) => {
    if (message.type() !== "error") return;
    if (message.text().includes(NETWORK_CHANGED)) changes += 1;
    else seen.errors.push(message.text());
  });
  page.on("dialog", (dialog) => (seen.errors.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  for (const [pattern, answer] of Object.entries(routes)) {
    await page.route(pattern, (route) =>
      route.fulfill({ status: 200, contentType: "application/json", ...answer(route.request()) }),
    );
  }
  await page.goto(world.url + path, { waitUntil: "load" });
  for (let tries = 0; changes > 0 && tries < 5; tries += 1) {
    changes = 0;
    await page.reload({ waitUntil: "load" });
  }
  return seen;
}

/** Checks that nothing of the page failed, was blocked or is wider than the window, and that axe finds no fault. */
export async function passes(seen, name) {
  const { page } = seen;
  assert.deepEqual(seen.errors, [], name);
  const { wide, room } = await page.evaluate(() => ({ wide: document.scrollingElement.scrollWidth, room: innerWidth }));
  assert.ok(wide <= room, `${name}: the page is ${wide} pixels wide in a window of ${room}`);
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
  const faults = found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => `${node.html} ${node.failureSummary}`).join("\n  ")}`);
  assert.deepEqual(faults, [], name);
  if (process.env.MUSTER_SCREENSHOTS) await page.screenshot({ path: `${process.env.MUSTER_SCREENSHOTS}/${name}.png`, fullPage: true });
}

/** Returns the names of the elements that Tab reaches, in order; each of them must be visible and show its focus. */
export async function tabbed(page, most = 200) {
  const names = [];
  await page.locator("header").evaluate((header) => {
    header.tabIndex = -1; // Tab goes on from here; the skip link comes before it and is the last one then
    header.focus();
    header.removeAttribute("tabindex");
  });
  for (let pressed = 0; pressed < most; pressed += 1) {
    await page.keyboard.press("Tab");
    const focus = await page.evaluate(() => {
      const at = document.activeElement;
      if (at === null || at === document.body) return null;
      const box = at.getBoundingClientRect();
      const style = getComputedStyle(at);
      return {
        name: at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent,
        seen: box.width > 0 && box.height > 0,
        ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
      };
    });
    if (focus === null || (names.length > 0 && focus.name === names[0])) break;
    assert.ok(focus.seen && focus.ring, `the focus on “${focus.name}” is not visible`);
    names.push(focus.name.trim());
  }
  return names;
}

/** Checks that hostile text is shown as text: no element was made of it, and nothing ran. */
export async function harmless(page) {
  const made = await page.evaluate(() => ({
    elements: document.querySelectorAll("main img, main script, main iframe, main b b, [onerror], [onclick]").length,
    ran: globalThis.pwned ?? null,
  }));
  assert.deepEqual(made, { elements: 0, ran: null });
}

export const MARKUP = `<img src=x onerror="globalThis.pwned=1"><script>globalThis.pwned=2</script>`;
