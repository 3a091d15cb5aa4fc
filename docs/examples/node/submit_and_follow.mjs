// Submit a job and follow it to its end with nothing but a NATS client.
//
// Requests and events are JSON as schemas/json has them.
//
//     npm ci && node submit_and_follow.mjs nats://127.0.0.1:4222 default tenant.default.creds my-job

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

import { connect, credsAuthenticator, Events, JSONCodec } from "nats";

const ENDS = { "workload.succeeded.v1": 0, "workload.failed.v1": 1, "workload.cancelled.v1": 1 };
const PASSING = new Set(["TIMEOUT", "503", "DISCONNECT"]); // asked again, it may be answered
const json = JSONCodec();

// One request; what may be repeated is, as every request here is safe to repeat.
async function ask(bus, tenant, verb, body) {
  for (let attempt = 0; attempt < 5; attempt++) {
    const pauseMs = 200 * 2 ** attempt;
    let reply;
    try {
      reply = await bus.request(`berth.api.${tenant}.${verb}`, json.encode(body), { timeout: 2000 });
    } catch (error) {
      if (!PASSING.has(error.code)) throw error;
      await sleep(pauseMs);
      continue;
    }
    const answer = json.decode(reply.data);
    if (answer.type !== "api.refusal.v1") return answer;
    if (!answer.retry) {
      throw new Error(`refused: ${answer.field} is ${answer.value}; right is ${answer.expected}`);
    }
    await sleep(Math.max((answer.retry_after_s ?? 0) * 1000, pauseMs));
  }
  throw new Error(`nobody answered ${verb}`);
}

// Says when there is something to ask for: an event came live, or the connection is a new one.
class Bell {
  #rung = false;
  #hear = () => {};

  ring() {
    this.#rung = true;
    this.#hear();
  }

  async heard(limitMs) {
    const timer = new AbortController();
    const rung = new Promise((hear) => { this.#hear = hear; });
    if (!this.#rung) {
      await Promise.race([rung, sleep(limitMs, null, { signal: timer.signal }).catch(() => {})]);
    }
    timer.abort();
    this.#rung = false;
  }
}

async function follow(bus, bell, tenant, job) {
  // Events that come live only say that there is something to ask for: so none is missed.
  bus.subscribe(`berth.event.${tenant}.>`, { callback: () => bell.ring() });
  let after = (await ask(bus, tenant, "events", {})).next_after;
  const submitted = await ask(bus, tenant, "submit", { id: job, expected_duration_s: 1 });
  if (submitted.existing) after = submitted.sequence - 1;
  for (;;) {
    const page = await ask(bus, tenant, "events", { after });
    after = page.next_after;
    for (const { sequence, event, void: lost } of page.events ?? []) {
      if (event.id !== job || lost) continue;
      console.log(sequence, event.type);
      if (event.type in ENDS) return ENDS[event.type];
    }
    if (!page.more) await bell.heard(30_000);
  }
}

async function main(url, tenant, creds, job) {
  const bus = await connect({
    servers: url,
    authenticator: credsAuthenticator(await readFile(creds)),
    inboxPrefix: `_INBOX.tenant.${tenant}`,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 500,
  });
  const bell = new Bell();
  (async () => {
    for await (const status of bus.status()) if (status.type === Events.Reconnect) bell.ring();
  })();
  try {
    return await follow(bus, bell, tenant, job);
  } finally {
    await bus.close();
  }
}

const argv = process.argv.slice(2);
if (argv.length !== 4) {
  console.error("usage: node submit_and_follow.mjs URL TENANT CREDENTIALS JOB");
  process.exit(2);
}
try {
  process.exitCode = await main(...argv);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
