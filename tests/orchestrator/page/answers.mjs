// Answers of the orchestrator's API for tests, and hostile texts that nodes could have put into them.

export const MARKUP = `<img src=x onerror="alert(1)"><script>alert(2)</script>`;
export const TURNED = "harmless\u202etxt.exe\u2066\u200b";
export const TOWER = "a" + "\u0301".repeat(500);
export const LONG = "x".repeat(5000);
export const NODE = "0x" + "aB".repeat(20);

export function node(more = {}) {
  return {
    address: NODE,
    state: "healthy",
    since_ms: 1000,
    reason: "it sent a heartbeat",
    member: true,
    provider: null,
    worker_version: "0.1.0",
    hardware: {
      cpu_model: "x",
      cpu_cores: 4,
      architecture: "x86_64",
      memory_bytes: 8 * 2 ** 30,
      disk_free_bytes: 2 ** 40,
      gpus: [],
      gpu_driver: null,
    },
    software: { worker_version: "0.1.0", operating_system: "Linux", runtimes: ["docker"] },
    labels: {},
    last_seen_ms: 9000,
    assignment: null,
    metrics: {},
    ...more,
  };
}

export function assignment(more = {}) {
  return {
    id: "0".repeat(32),
    task_name: "rollouts",
    state: "running",
    detail: "",
    generation: 1,
    restarts: 0,
    ended_at_ms: null,
    ended_because: "",
    ...more,
  };
}

export const STEP = {
  step: 3,
  demand: 24,
  rounds: 0,
  closed: false,
  accepted: 8,
  pending: 4,
  leased: 4,
  rejected: 1,
  need: 8,
};

export const RUN = { run: "main", checkpoint: null, steps: [], async_level: 2, queued_submissions: 0, paused: "" };

export const ITEM = {
  key: `0x${"c".repeat(64)}`,
  node: NODE,
  index: 0,
  version: 2,
  groups: 4,
  units: 384,
  figures: { reward: 0.5 },
  submitted_at_ms: 1,
  status: "provisional",
  outcome: 1,
  reason: 0,
};
