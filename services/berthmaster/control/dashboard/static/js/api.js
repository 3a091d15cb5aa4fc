// Asks the service for one thing. Errors carry what the service said.

export class Failed extends Error {
  constructor(status, said) {
    super(said.error || `the server answered ${status}`);
    this.status = status;
    this.field = said.field || "";
  }
}

async function answer(reply) {
  let said = {};
  try {
    said = await reply.json();
  } catch {
    said = { error: `the server answered ${reply.status} without JSON` };
  }
  if (!reply.ok) throw new Failed(reply.status, said);
  return said;
}

const LIMIT_MS = 15_000;

export async function ask(path, signal) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  return answer(await fetch(`api/${path}`, { signal: signal ? AbortSignal.any([signal, limit]) : limit }));
}

export async function post(path, body) {
  return answer(await fetch(`api/${path}`, {
    method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(LIMIT_MS),
    headers: { "Content-Type": "application/json" },
  }));
}
