// The devnet's report in Chromium, opened as a file.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LOOKS, harmless, open, passes, world } from "./browser.mjs";

for (const look of LOOKS) {
  test(`the report is readable and accessible: ${JSON.stringify(look)}`, async () => {
    const seen = await open("", look);
    const { page } = seen;
    const text = await page.locator("main").innerText();
    for (const each of world.texts) assert.ok(text.includes(each), `${each} is missing in ${text}`);
    await harmless(page);
    const charts = await page.locator("svg:visible").evaluateAll((drawn) =>
      drawn.map((svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width),
    );
    assert.ok(charts.length > 0 && charts.every((scale) => scale > 0.85), `charts are scaled by ${charts}, so their text is too small`);
    const lost = await page.evaluate(() =>
      [...document.querySelectorAll("td, dd, h2, .tile, .gantt > span")].filter((each) => each.getBoundingClientRect().right > innerWidth).map((each) => each.textContent),
    );
    assert.deepEqual(lost, []);
    await passes(seen, `report-${look.width}-${look.dark ? "dark" : "light"}`);
    await seen.close();
  });
}
