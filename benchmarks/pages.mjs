// Opens the pages in Chromium and prints their times and requests as JSON; started by pages.py.

import { createRequire } from "node:module";

const require = createRequire(`${process.env.MUSTER_NODE_MODULES}/`);
const { chromium } = require("playwright-core");
const world = JSON.parse(process.env.MUSTER_WORLD);

const PAGES = [
  ["/public/", "Providers by earnings"],
  ["/me/", "Your work, newest first"],
  ["/page/#run", "Steps of the run"],
  ["/page/#money", "Earnings and slashes of nodes"],
  ["/page/#nodes", "Nodes of the pool"],
  ["/page/#rollouts", "Submitted files of the step"],
  ["/page/#events", "Events of the pool, newest first"],
];
const TRIES = 5;
const SECONDS = 30;

const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
const browser = await chromium.launch({ executablePath: process.env.MUSTER_CHROMIUM, args: ["--no-sandbox"] });

/** Measures a page; tries again if Chromium aborted requests because an interface of the machine changed. */
async function once(page, clock) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await measured(page, clock);
    } catch (error) {
      if (tries === 5 || !String(error).includes("ERR_NETWORK_CHANGED")) throw error;
    }
  }
}

async function measured([path, region], clock) {
  const context = await browser.newContext(); // an empty cache, as at the first visit
  await context.addInitScript((kept) => Object.entries(kept).forEach(([name, value]) => sessionStorage.setItem(name, value)), {
    "muster-token": world.token,
    "muster-session": world.session,
  });
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  let asked = 0;
  page.on("request", (request) => (asked += request.url().includes("/v1/") ? 1 : 0));
  if (clock) await page.clock.install();
  const began = performance.now();
  await page.goto(world.url + path, { waitUntil: "domcontentloaded" });
  await page
    .getByRole("region", { name: region })
    .getByRole("row")
    .nth(1)
    .waitFor({ timeout: 15_000 })
    .catch(async (error) => {
      throw new Error(`${path} shows: ${(await page.locator("main").innerText()).slice(0, 2000)} ${errors.join("; ")}`, { cause: error });
    });
  const data = performance.now() - began;
  const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0);
  let perSecond = 0;
  if (clock) {
    const before = asked;
    for (let second = 0; second < SECONDS; second += 1) {
      await page.clock.runFor(1000);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    perSecond = (asked - before) / SECONDS;
  }
  await context.close();
  return { data, paint, perSecond };
}

const found = [];
for (const each of PAGES) {
  const tries = [];
  for (let index = 0; index < TRIES; index += 1) tries.push(await once(each, false));
  const { perSecond } = await once(each, true);
  const of = (name) => middle(tries.map((one) => one[name]));
  found.push({ path: each[0], paint_ms: of("paint"), data_ms: of("data"), per_second: perSecond });
}
await browser.close();
console.log(JSON.stringify(found));
