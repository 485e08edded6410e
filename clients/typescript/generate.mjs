// Writes the types of the services' APIs: node generate.mjs ORCHESTRATOR DISCOVERY.
// Each argument is a file or URL of an OpenAPI document.
import { mkdir, writeFile } from "node:fs/promises";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";

const [orchestrator, discovery] = process.argv.slice(2);
if (!orchestrator || !discovery) {
  console.error("usage: node generate.mjs ORCHESTRATOR DISCOVERY (https://…/openapi.json, or a file)");
  process.exit(2);
}
const folder = new URL("src/generated/", import.meta.url);
await mkdir(folder, { recursive: true });
for (const [name, source] of Object.entries({ orchestrator, discovery })) {
  const url = /^https?:/.test(source) ? new URL(source) : pathToFileURL(resolve(source));
  // Fields with a default may be left out of requests, and older services leave them out of answers.
  const types = await openapiTS(url, { defaultNonNullable: false });
  await writeFile(new URL(`${name}.ts`, folder), astToString(types));
}
