/** Client of Muster for pool owners and nodes. */
export * from "./bytes.js";
export * from "./clients.js";
export * from "./errors.js";
export * from "./http.js";
export * from "./identifiers.js";
export * from "./keys.js";
export * from "./seeds.js";
export * from "./signing.js";
export * from "./typed-data.js";
