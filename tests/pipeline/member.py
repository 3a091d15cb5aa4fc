"""One pod of an elastic job, as a process: it finds the others, works in steps with all who are
there, and goes on when somebody comes or goes. What torchrun's rendezvous does, in small.

The pod of index 0 leads: pods of the highest indices go first, so it is there to the last. A step
adds up one number of every member. A step that a member does not answer is done again without it.
"""

import os
import select
import socket
import sys
import time

LIMIT_S = 600.0  # its test has killed it long before
PAUSE_S = 0.01


def lead(port: int, least: int) -> None:
    members: list[socket.socket] = []
    step, end_s = 0, time.monotonic() + LIMIT_S
    with socket.create_server(("127.0.0.1", port)) as server:
        waiting = select.poll()
        waiting.register(server, select.POLLIN)
        while time.monotonic() < end_s:
            while waiting.poll(0):
                member, _ = server.accept()
                member.settimeout(LIMIT_S)
                members.append(member)
            if 1 + len(members) < least:
                time.sleep(PAUSE_S)
                continue
            answers, there = [1], []
            for member in members:
                try:
                    member.sendall(f"{step}\n".encode())
                    answers.append(int(member.recv(64)))
                except (OSError, ValueError):
                    member.close()  # it went
                else:
                    there.append(member)
            if len(there) == len(members):
                step += 1
                print(step, len(answers), sum(answers), flush=True)
            members = there
            time.sleep(PAUSE_S)


def follow(port: int, index: int) -> None:
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as leader:
                leader.settimeout(LIMIT_S)
                while leader.recv(64):
                    leader.sendall(f"{index + 1}\n".encode())
        except OSError:
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    least = int(os.environ["BERTH_MIN_COUNT"])
    index, port = int(os.environ["JOB_COMPLETION_INDEX"]), int(sys.argv[1])
    lead(port, least) if index == 0 else follow(port, index)
