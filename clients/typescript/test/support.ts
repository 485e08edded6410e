/** Settings and helpers of the tests that talk to services. */
import assert from "node:assert/strict";
import { type Address, ProblemError, type Registration } from "../src/index.js";

/** Returns an environment variable of the tests. */
export function setting(name: string): string {
  const value = process.env[name];
  assert.ok(value, `${name} is missing`);
  return value;
}

/** Returns a service's place and the address of its key. */
export function service(name: string): { url: string; address: Address } {
  return { url: setting(name), address: setting(`${name}_ADDRESS`) as Address };
}

/** A registration without the pool. */
export const capabilities: Omit<Registration, "pool_id"> = {
  hardware: {
    cpu_model: "test",
    cpu_cores: 4,
    architecture: "x86_64",
    memory_bytes: 2 ** 33,
    disk_free_bytes: 2 ** 36,
    gpus: [],
    gpu_driver: null,
  },
  software: {
    worker_version: "typescript 0.1.0",
    protocol_version: 1,
    operating_system: "any",
    runtimes: ["process"],
    docker_version: null,
    gpu_containers: false,
  },
  labels: { region: "eu" },
};

/** Returns the problem with which a call is refused. */
export async function refusal(call: Promise<unknown>): Promise<ProblemError> {
  try {
    await call;
  } catch (error) {
    assert.ok(error instanceof ProblemError, String(error));
    return error;
  }
  return assert.fail("the call was not refused");
}
