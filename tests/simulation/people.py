"""What people ask for in one world: jobs, cancels, new priorities, operators' orders."""

from typing import Final

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import ApiReply, Refusal, SubmitReply
from berthmaster.lib.messages.workload import IdleChanged
from tests.simulation.clockwork import START_S
from tests.simulation.deciders import DUE_SPEED
from tests.simulation.front import SETTLE_LIMIT_S, TENANT
from tests.simulation.ground import Ground

SOON_S: Final = 10.0  # while it is placed and claimed


class Peopled(Ground):
    def _people(self) -> None:
        self._bodies: dict[Key, dict[str, object]] = {}
        chance = self.chance
        span_s = self.calm_at_s - START_S
        self.jobs = chance.choice((4, 8, 16))
        for number in range(self.jobs):
            body = self._request(number)
            at_s = START_S + span_s * 0.8 * chance.random()
            self.clock.at(at_s, lambda b=body: self._submit(b))  # type: ignore[misc]
            self._wishes(str(body["id"]), at_s, span_s)
        if self.faults.has("balance"):
            self._pieces()
        self._idle_then = self.faults.dice("idle").choice(("report", "shrink", "hold", "end"))
        self._orders(span_s)
        self._verdicts(span_s)

    def _idle_rule(self) -> dict[str, object]:
        """Return what queues say of idle jobs."""
        if not self.faults.has("idle"):
            return {}
        return {"idle_after_s": 60.0, "idle_then": self._idle_then}

    def _verdicts(self, span_s: float) -> None:
        """Say of running jobs that they are idle, or are no more: rightly, falsely and too late."""
        if not self.faults.has("idle"):
            return
        dice = self.faults.dice("idle")
        for _ in range(dice.choice((4, 10, 20))):
            self.clock.at(START_S + span_s * dice.random(), self._verdict)

    def _verdict(self) -> None:
        dice = self.faults.dice("idle")
        running = [
            work
            for _, work in sorted(self.judge.workloads.items())
            if work.state is State.RUNNING and not work.part_of
        ]
        if not running:
            return
        work = dice.choice(running)
        how = dice.choice(("idle", "idle", "idle", "busy", "late"))
        now_s = self.clock.now_s
        event = IdleChanged(
            tenant=work.tenant,
            id=work.id,
            after=work.sequence - (how == "late"),
            at_s=now_s,
            by="gateway/measured",
            cluster=work.cluster,
            attempt=work.attempt,
            idle=how != "busy",
            since_s=now_s - 3600.0,
        )
        if self._idle_then == "end":
            self.judge.cancels.add(work.key)  # its queue says so, as a person would
        self.bus.append(self.front, event, lambda _: None, settle_s=SETTLE_LIMIT_S)
        for pause_s in (5.0, 20.0):
            at_s = now_s + pause_s * self.pace.longer
            self.clock.at(at_s, lambda: self.person.ask("release", {"id": work.id}))
            self.calm_at_s = max(self.calm_at_s, at_s)

    def _pieces(self) -> None:
        """Small jobs that take all there is; some end soon, and what they leave is free in pieces.
        A few that want more of a node come then."""
        dice, longer = self.faults.dice("balance"), self.pace.longer
        for number in range(dice.choice((6, 12, 18))):
            body = self._piece(number, 1, longer * dice.choice((10.0, 110.0, 110.0)))
            self.clock.at(START_S, lambda b=body: self._submit(b))  # type: ignore[misc]
        for number in range(dice.choice((1, 3))):
            body = self._piece(100 + number, dice.choice((2, 2, 4)), 20.0 * longer)
            self.clock.at(START_S + longer * 20.0 * dice.random(), lambda b=body: self._submit(b))  # type: ignore[misc]

    def _piece(self, number: int, gpus: int, lasts_s: float) -> dict[str, object]:
        return {
            "id": f"piece-{number}",
            "pod_sets": [{"gpus": gpus}],
            "expected_duration_s": self._says(lasts_s),
            "max_evictions": 10,
            "grace_s": 1.0,
        }

    def _request(self, number: int) -> dict[str, object]:
        chance = self.chance
        longer = self.pace.longer
        deadline_s = self.faults.dice("deadlines").choice((None, 20.0 * longer, 60.0 * longer))
        shapes: tuple[dict[str, object], ...] = (
            {"gpus": 1},
            {"gpus": 1},
            {"gpus": 2},
            {"gpus": 1, "gpu_milli": 500},
            {"gpus": 1, "gpu_milli": 300},
            {"gpus": 1, "count": 2},
            {"gpus": 2, "count": 2},
            {"cpu_milli": 8000},
            {"gpus": 1, "gpu_models": ["T4"]},
            {"gpus": 8},
        )
        pod_sets = [chance.choice(shapes)]
        if self.faults.has("elastic"):
            dice = self.faults.dice("elastic")
            if dice.random() < 0.6:
                sizes: dict[str, object] = {"gpus": 1, "count": (count := dice.randint(1, 4))}
                sizes["min_count"] = dice.randint(1, count)
                sizes["max_count"] = dice.randint(count, 6)
                pod_sets = [sizes]
        if self.faults.has("shapes") and self.faults.dice("shapes").random() < 0.3:
            pod_sets.append({"name": "driver", "cpu_milli": 500})
        body: dict[str, object] = {
            "id": f"job-{number}",
            "pod_sets": pod_sets,
            "priority": chance.choice((0, 0, 5)),
            "expected_duration_s": self._says(longer * chance.choice((2.0, 15.0, 50.0, 120.0))),
            "max_evictions": chance.choice((0, 1, 3, 10)),
        }
        self._divide(body)
        self._try_out(body)
        queue = chance.choice(("default", "team"))
        if self.faults.has("queues"):
            body["queue"] = queue
        if self.faults.has("deadlines") and deadline_s is not None:
            body["deadline_s"] = deadline_s
        if self.faults.has("room"):
            dice = self.faults.dice("room")
            body["preemptible"] = dice.random() < 0.8
            body["checkpoint_every_s"] = dice.choice((None, 5.0 * longer))
        if self.faults.has("balance"):
            body["grace_s"] = 1.0
        if chance.random() < 0.1:
            body["clusters"] = ["c1"]
        return body

    def _divide(self, body: dict[str, object]) -> None:
        """Some are so wide that no cluster has room for all, and may be divided."""
        dice = self.faults.dice("divided")
        if not self.faults.has("divided") or dice.random() > 0.5:
            return
        gang = dice.random() < 0.7
        body["pod_sets"] = [{"gpus": dice.choice((1, 2)), "count": dice.randint(2, 6)}]
        body["divide"] = {"by": dice.choice(("room", "room", "weight")), "gang": gang}
        body |= {"retries": dice.choice((0, 2)), "backoff_s": 1.0}

    def _try_out(self, body: dict[str, object]) -> None:
        """Some try one and two GPUs first, for a time that may be too long or too short."""
        dice, longer = self.faults.dice("trials"), self.pace.longer
        if not self.faults.has("trials") or "divide" in body or dice.random() > 0.4:
            return
        trial: dict[str, object] = {
            "budget_s": min(86_400.0, 30.0 * longer),
            "configurations": [{"gpus": 1}, {"gpus": 2}],
            "then": dice.choice(("best", "best", "report")),
            "by": dice.choice(("time", "cost")),
            "wait_s": min(2_592_000.0, dice.choice((60.0, 200.0)) * longer),
        }
        body["pod_sets"] = [{"trial": trial}]

    def _trial_rule(self) -> dict[str, object]:
        """Return what queues say of trials."""
        if not self.faults.has("trials"):
            return {}
        return {"trial_gpu_h_a_day": self.faults.dice("trials").choice((self.pace.longer, 1e6))}

    def _says(self, lasts_s: float) -> float | None:
        """What it says of how long it takes."""
        if not self.faults.leaves_durations_open:
            return lasts_s
        return (
            DUE_SPEED / self.pace.longer * lasts_s
            if self.faults.dice("due" if self.faults.has("due") else "similar").random() < 0.5
            else None
        )

    def _submit(self, body: dict[str, object], *, changed: bool = False) -> None:
        """``changed``: the queue, after a refusal. What was asked before it may be stored all the
        same, by a gateway that ended before it could say so."""
        name = key(TENANT, str(body["id"]))
        self._bodies[name] = body

        def then(reply: ApiReply) -> None:
            if isinstance(reply, SubmitReply):
                self.submitted[name] = "accepted"
                if name in self.judge.workloads or self.judge.pending:
                    return
                if name in self.judge.unrecovered:
                    self._submit(body)  # the log has lost it before its tenant had the answer
                else:
                    self.judge.find("none is lost", f"accepted and not in the log: {reply}")
            elif isinstance(reply, Refusal) and "trial" in reply.field:
                self.clock.after(2.0, lambda: self._submit(body))  # the queue is being set
            elif isinstance(reply, Refusal) and reply.field == "queue":
                again = dict(body)  # it is being made
                if "without others below it" in reply.expected:  # a parent now: to its child
                    again["queue"] = "above" if body["queue"] == "team" else "team"
                self.clock.after(2.0, lambda: self._submit(again, changed=again != body or changed))
            elif changed and isinstance(reply, Refusal) and reply.field == "id":
                if name not in self.judge.workloads:
                    self.judge.find("a good request is accepted", str(reply))
                self.submitted[name] = "accepted"
            else:
                self.judge.find("a good request is accepted", str(reply))

        self.submitted[name] = "asked"
        self.person.ask("submit", body, then=then)

    def _submit_lost(self) -> None:
        """Tenants submit again what was accepted and no log has any more."""
        for name, how in list(self.submitted.items()):
            if how == "accepted" and name not in self.judge.workloads:
                self._submit(self._bodies[name])

    def _wishes(self, name: str, at_s: float, span_s: float) -> None:
        self._verbs(name, at_s, span_s)
        for kind, share in (("cancel", 0.3), ("reprioritize", 0.3)):
            dice = self.faults.dice(kind)
            if not self.faults.has(kind) or dice.random() > share:
                continue
            when_s = at_s + span_s * 0.3 * dice.random()
            if self.pace.strikes_at_events and dice.random() < self.pace.strikes_at_events:
                when_s = at_s + SOON_S * dice.random()
            for _ in range(dice.choice((1, 1, 3))):
                body: dict[str, object] = {"id": name}
                if kind == "reprioritize":
                    body["priority"] = dice.choice((-5, 0, 9))
                self.clock.at(when_s, lambda k=kind, b=body: self._wish(k, b))  # type: ignore[misc]
                when_s += dice.choice((0.0, 0.01, 3.0))

    def _verbs(self, name: str, at_s: float, span_s: float) -> None:
        """People hold it, have it go or move it, and it tells of a checkpoint; all of it may come
        when it has ended, or not yet begun. What is held is released."""
        dice = self.faults.dice("verbs")
        if not self.faults.has("verbs") or dice.random() > 0.4:
            return
        when_s = at_s + span_s * 0.3 * dice.random()
        for _ in range(dice.choice((1, 2, 3))):
            verb = dice.choice(("hold", "evict", "move", "checkpointed"))
            body: dict[str, object] = {"id": name}
            if verb == "hold":
                body["evict"] = dice.random() < 0.7
                over_s = when_s + 10.0 * dice.random()
                self.clock.at(over_s, lambda: self.person.ask("release", {"id": name}))
                self.calm_at_s = max(self.calm_at_s, over_s)
            elif verb == "move" and dice.random() < 0.5:
                body["to"] = dice.choice(self.sites).spec.name
            elif verb == "checkpointed":
                body |= {"step": dice.randint(0, 9), "uri": f"s3://runs/{name}"}
            self.clock.at(when_s, lambda v=verb, b=body: self.person.ask(v, b))  # type: ignore[misc]
            when_s += 5.0 * dice.random()

    def _drains(self, span_s: float) -> None:
        dice = self.faults.dice("verbs")
        if not self.faults.has("verbs"):
            return
        ask = self.person.ask
        for _ in range(dice.choice((1, 2))):
            place: dict[str, object] = {"cluster": dice.choice(self.sites).spec.name}
            if dice.random() < 0.5:
                place["node"] = "n1"
            began_s = START_S + span_s * dice.random()
            over_s = began_s + span_s * 0.5 * dice.random()
            by_s = began_s + 45.0 + 20.0 * dice.random() if dice.random() < 0.5 else None
            drain = place | ({} if by_s is None else {"by_s": by_s})
            self.clock.at(began_s, lambda b=drain: ask("drain", b, operator=True))  # type: ignore[misc]
            self.clock.at(over_s, lambda b=place: ask("uncordon", b, operator=True))  # type: ignore[misc]
            self.calm_at_s = max(self.calm_at_s, over_s)

    def _wish(self, verb: str, body: dict[str, object]) -> None:
        if verb == "cancel":
            self.judge.cancels.add(key(TENANT, str(body["id"])))
        self.person.ask(verb, body)

    def _deserved(self, least: int, most: int | None) -> int | None:
        drawn = self.faults.dice("room").choice((None, 1000, 4000))
        return None if drawn is None else min(max(drawn, least), most or drawn)

    def _parent(self) -> str:
        has = self.faults.has("parents")
        return self.faults.dice("parents").choice(("", "above")) if has else ""

    def _above(self) -> dict[str, object]:
        """A queue that others may be below; sometimes it would be below one of them itself, which
        is refused, unless both are asked for at once."""
        dice = self.faults.dice("parents")
        return {
            "queue": "above",
            "parent": dice.choice(("", "", "team")),
            "capability_gpu_milli": dice.choice((None, 3000, 8000)),
            "guarantee_gpu_milli": dice.choice((None, None, 3000)),
            "weight": dice.choice((0.5, 2.0)),
            **self._trial_rule(),
        }

    def _set(self, setting: dict[str, object]) -> None:
        """A queue; where it may not be below another, or not with that guarantee, without them."""

        def then(reply: ApiReply) -> None:
            if isinstance(reply, Refusal) and plain != setting:
                self._set(plain)

        plain = setting | {"parent": "", "guarantee_gpu_milli": None}
        self.person.ask("queue", setting, operator=True, then=then)

    def _orders(self, span_s: float) -> None:
        ask = self.person.ask
        self._drains(span_s)
        rebalances = "never"
        if self.faults.has("balance"):
            rebalances = self.faults.dice("balance").choice(("queue", "all", "all"))
        if any(map(self.faults.has, ("balance", "idle", "trials"))):
            default: dict[str, object] = {
                "type": "control.queue.v1",
                "queue": "default",
                "rebalances": rebalances,
                **self._idle_rule(),
                **self._trial_rule(),
            }
            self.clock.at(START_S, lambda: self._set(default))
        if self.faults.has("queues"):
            dice = self.faults.dice("queues")
            for share in (0.0, dice.random(), dice.random()):
                setting: dict[str, object] = {
                    "queue": "team",
                    "priority": dice.choice((0, 5)),
                    "held": share > 0 and dice.random() < 0.3,
                    "capability_gpu_milli": (most := dice.choice((None, 2000, 8000))),
                    "guarantee_gpu_milli": (least := dice.choice((None, 1000, 2000))),
                    "deserved_gpu_milli": self._deserved(least or 0, most),
                    "preempts": self.faults.dice("room").choice(("never", "queue", "all")),
                    "rebalances": rebalances,
                    "weight": dice.choice((0.5, 1.0, 3.0)),
                    "max_running_jobs": dice.choice((None, None, 2)),
                    "resources": dice.choice(({}, {"gpu/T4": {"capability": 3000}})),
                    **self._idle_rule(),
                    **self._trial_rule(),
                }
                below = setting | {"parent": self._parent()}
                for each in (self._above(), below) if self.faults.has("parents") else (below,):
                    self.clock.at(
                        START_S + span_s * share,
                        lambda s={"type": "control.queue.v1"} | each: self._set(s),  # type: ignore[misc]
                    )
        for kind, on, off in (("cordon", "cordon", "uncordon"), ("lost", "lost", "found")):
            dice = self.faults.dice(kind)
            if not self.faults.has(kind):
                continue
            for _ in range(dice.choice((1, 2))):
                site = dice.choice(self.sites)
                body: dict[str, object] = {"cluster": site.spec.name, "reason": "a person says so"}
                if kind == "cordon" and dice.random() < 0.5:
                    body["node"] = "n1"
                began_s = START_S + span_s * dice.random()
                lasts_s = span_s * 0.5 * dice.random()
                self.note_misfortune(began_s, kind, site, lasts_s)
                self.clock.at(began_s, lambda b=body, v=on: ask(v, b, operator=True))  # type: ignore[misc]
                self.clock.at(
                    began_s + lasts_s,
                    lambda b=body, v=off: ask(v, b, operator=True),  # type: ignore[misc]
                )
                self.calm_at_s = max(self.calm_at_s, began_s + lasts_s)
