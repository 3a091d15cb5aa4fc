"""Submit a job and follow it to its end with nothing but a NATS client (nats-py with nkeys).

Requests and events are JSON as schemas/json has them.

    python submit_and_follow.py nats://127.0.0.1:4222 default tenant.default.creds my-job
"""

import asyncio
import json
import sys
from contextlib import suppress

import nats

ENDS = {"workload.succeeded.v1": 0, "workload.failed.v1": 1, "workload.cancelled.v1": 1}


async def ask(bus, tenant, verb, body):
    """One request; what may be repeated is, as every request here is safe to repeat."""
    for attempt in range(5):
        try:
            reply = await bus.request(f"berth.api.{tenant}.{verb}", json.dumps(body).encode(), 2)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            await asyncio.sleep(0.2 * 2**attempt)
            continue
        answer = json.loads(reply.data)
        if answer["type"] != "api.refusal.v1":
            return answer
        if not answer.get("retry"):
            sys.exit(
                f"refused: {answer['field']} is {answer['value']}; right is {answer['expected']}"
            )
        await asyncio.sleep(max(answer.get("retry_after_s", 0), 0.2 * 2**attempt))
    sys.exit(f"nobody answered {verb}")


async def main(url, tenant, creds, job):
    again = asyncio.Event()  # set by an event that comes live, and by a new connection

    async def wake(_=None):
        again.set()

    bus = await nats.connect(
        url,
        user_credentials=creds,
        inbox_prefix=f"_INBOX.tenant.{tenant}",
        reconnected_cb=wake,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.5,
    )
    # Events that come live only say that there is something to ask for: so none is missed.
    await bus.subscribe(f"berth.event.{tenant}.>", cb=wake)
    after = (await ask(bus, tenant, "events", {}))["next_after"]
    submitted = await ask(bus, tenant, "submit", {"id": job, "expected_duration_s": 1})
    if submitted.get("existing"):
        after = submitted["sequence"] - 1
    while True:
        page = await ask(bus, tenant, "events", {"after": after})
        after = page["next_after"]
        for one in page.get("events", []):
            event = one["event"]
            if event["id"] != job or one.get("void"):
                continue
            print(one["sequence"], event["type"], flush=True)
            if event["type"] in ENDS:
                await bus.close()
                return ENDS[event["type"]]
        if not page.get("more"):
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    await again.wait()
            again.clear()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:5])))
