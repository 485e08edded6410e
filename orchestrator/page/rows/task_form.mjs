// Reads the forms that post and change a task. The orchestrator checks everything again.

const NAME = /^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$/;
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/;
const MEBIBYTE = 1024 * 1024;

/** Returns `{spec}` for valid values of the form, else `{fault, field}` with the text and the id of the wrong field. */
export function specOf(values) {
  const wrong = (field, fault) => ({ field, fault });
  const name = values.name.trim();
  if (!NAME.test(name)) return wrong("task-name", "A name has 1 to 63 characters: a-z, 0-9, dot, dash, underscore.");
  const image = values.image.trim();
  if (image === "") return wrong("task-image", "Name an image, such as python:3.11.");
  const environment = {};
  for (const line of linesOf(values.environment)) {
    const [variable, value] = [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)];
    if (!line.includes("=") || !VARIABLE.test(variable)) return wrong("task-environment", `“${line.slice(0, 60)}” is not NAME=VALUE.`);
    environment[variable] = value;
  }
  const numbers = {};
  for (const [field, text, lowest, highest] of [
    ["cpus", values.cpus, 0.01, 4096],
    ["memory", values.memory, 16, 2 ** 30],
    ["gpus", values.gpus, 0, 64],
    ["priority", values.priority, -100, 100],
  ]) {
    const number = Number(text);
    const whole = field === "cpus" || Number.isInteger(number);
    if (text.trim() === "" || !whole || !(number >= lowest && number <= highest)) return wrong(`task-${field}`, `A number from ${lowest} to ${highest} is needed.`);
    numbers[field] = number;
  }
  const replicas = replicasOf(values.replicas);
  if (replicas === null) return wrong("task-replicas", "A number from 1 to 100,000 is needed; leave it empty for every node.");
  const spec = {
    name,
    image,
    command: linesOf(values.command),
    environment,
    replicas,
    priority: numbers.priority,
    resources: { cpus: numbers.cpus, memory_bytes: numbers.memory * MEBIBYTE },
    gpus: { count: numbers.gpus },
    network: values.network,
  };
  return { spec };
}

/** Returns `{change}` with replicas and priority, else `{fault, field}`. */
export function changeOf({ replicas, priority }) {
  const number = Number(priority);
  const wanted = replicasOf(replicas);
  if (wanted === null) return { field: "task-replicas", fault: "A number from 1 to 100,000 is needed; leave it empty for every node." };
  if (priority.trim() === "" || !Number.isInteger(number) || Math.abs(number) > 100) return { field: "task-priority", fault: "A whole number from -100 to 100 is needed." };
  return { change: { replicas: wanted, priority: number } };
}

function replicasOf(text) {
  if (text.trim() === "") return "every-node";
  const number = Number(text);
  return Number.isInteger(number) && number >= 1 && number <= 100_000 ? number : null;
}

function linesOf(text) {
  return text.split("\n").filter((line) => line.trim() !== "");
}
