"""Try to administer FLARE with some kit, in a process of its own: FLARE's client leaves threads behind.

    python -m tests.silo.administer KIT USER [JOB...]

Prints one line per attempt: what was tried, a colon, and what came of it.
"""

import os
import sys
import threading

from nvflare.fuel.flare_api.flare_api import new_secure_session


def attempt(name: str, action) -> object:
    try:
        result = action()
    except BaseException as error:
        print(f"{name}: refused: {type(error).__name__} {error}", flush=True)
        return None
    print(f"{name}: done", flush=True)
    return result


def give_up() -> None:
    print("log in: refused: nobody answers", flush=True)
    os._exit(0)


def main(kit: str, user: str, *jobs: str) -> None:
    patience = threading.Timer(15.0, give_up)  # FLARE's own is longer
    patience.start()
    session = attempt("log in", lambda: new_secure_session(user, kit, timeout=10.0))
    patience.cancel()
    if session is not None:
        for job in jobs:
            attempt(f"submit {os.path.basename(job)}", lambda job=job: session.submit_job(job))
        attempt("look", session.get_system_info)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
