"""A program that starts, logs and dies as SGLang's server does: ``fake_server.py [--behave HOW] --host H --port P``."""

import os
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHILD = "import time; time.sleep(600)"
SCHEDULER_DIED = """\
[2026-01-01 00:00:02] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 6364, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args)
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.1

[2026-01-01 00:00:02] Received sigquit from a child process. It usually means the child failed."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/model_info":
            self.wfile.write(b'{"model_path": "fake", "weight_version": "0"}')

    def do_POST(self):
        os._exit(3)

    def log_message(self, *words):
        pass


def main(argv):
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    child = subprocess.Popen([sys.executable, "-c", CHILD])
    print(f"[2026-01-01 00:00:00] server_args={{}} child={child.pid} own={os.getpid()}", flush=True)
    descriptor, socket = tempfile.mkstemp()
    os.close(descriptor)
    shared = Path(f"/dev/shm/sglang_loads_{Path(socket).name}_0a1b2c3d.shm")
    shared.touch()
    print(f"socket={socket} shared={shared}", flush=True)
    print("[2026-01-01 00:00:01] Load weight begin. avail mem=1.00 GB", flush=True)
    if options.get("--behave") == "die":
        print(SCHEDULER_DIED, flush=True)
        os._exit(1)
    if options.get("--behave") == "hang":
        time.sleep(600)
    ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
