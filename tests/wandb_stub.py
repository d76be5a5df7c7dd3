"""As much of a W&B server as the client needs for runs, tables and images, on a free loopback port.

    with Server() as server:
        …                                # server.environment: what the client must be given
        server.runs["<id>"].history      # what the server holds: its lines, each at the offset it was sent to
        server.runs["<id>"].received     # every line ever sent, in order: a line sent twice is in it twice
        server.files                     # {path: bytes} of everything uploaded

server.refuse = True answers 401 to everything, server.hang = True never answers, server.close() dies.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

KEY = "k" * 40  # the length of a real key; the client checks it
USER = {
    "id": "VXNlcjox",
    "username": "tester",
    "email": "tester@example.org",
    "entity": "tester",
    "name": "tester",
    "admin": False,
    "flags": "{}",
    "teams": {"edges": []},
}
ENTITY = {"id": "RW50aXR5", "name": "tester"}


@dataclass
class StoredRun:
    """One run as a server would hold it."""

    id: str
    name: str = ""
    group: str = ""
    project: str = ""
    config: dict = field(default_factory=dict)
    tags: list = field(default_factory=list)
    history: dict[int, dict] = field(default_factory=dict)  # by line
    received: list[dict] = field(default_factory=list)
    summary: dict = field(default_factory=dict)
    exit_code: int | None = None

    def steps(self) -> list[int]:
        """Training steps of the stored history, in its order."""
        return [line["train/step"] for _, line in sorted(self.history.items()) if "train/step" in line]

    def steps_received(self) -> list[int]:
        return [line["train/step"] for line in self.received if "train/step" in line]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.environment = {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}
        self.runs: dict[str, StoredRun] = {}
        self.files: dict[str, bytes] = {}
        self.operations: list[str] = []
        self.errors: list[BaseException | None] = []
        self.unknown: list[str] = []  # paths of posts that are none of a run's
        self.upserts: list[dict] = []  # what was said of runs
        self.refuse = self.hang = False
        self.lock = threading.Lock()
        self.number = itertools.count(1)
        self.released = threading.Event()

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request, address) -> None:
        """A client that hangs up is not worth a traceback; anything else is kept for the test to look at."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            self.errors.append(error)

    def run(self, id: str) -> StoredRun:
        return self.runs.setdefault(id, StoredRun(id))

    def answer(self, operation: str, variables: dict) -> dict:
        """The `data` of a GraphQL answer."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
        return getattr(self, f"on_{name}", lambda _: {})(variables)

    def on_viewer(self, _) -> dict:
        version = {"cliVersionInfo": {"max_cli_version": "99.0.0"}, "latestLocalVersionInfo": None}
        return {"viewer": USER, "serverInfo": version}

    def on_server_features_query(self, _) -> dict:
        return {"serverInfo": {"features": []}}

    def on_upsert_bucket(self, variables: dict) -> dict:
        self.upserts.append(variables)
        inserted = variables["name"] not in self.runs
        run = self.run(variables["name"])
        run.name = variables.get("displayName") or run.name
        run.group = variables.get("groupName") or run.group
        run.project = variables.get("project") or run.project
        run.tags = variables.get("tags") or run.tags
        run.config = json.loads(variables.get("config") or "null") or run.config
        project = {"id": "UHJvamVjdA", "name": run.project, "entity": ENTITY}
        bucket = {"id": f"UnVu{run.id}", "name": run.id, "displayName": run.name, "description": "",
                  "config": json.dumps(run.config), "sweepName": None, "historyLineCount": len(run.history),
                  "project": project}  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def on_run_resume_status(self, variables: dict) -> dict:
        run = self.runs.get(variables.get("name"))
        if run is None:
            return {"model": None}
        last = [json.dumps(line) for _, line in sorted(run.history.items())][-1:]
        bucket = {
            "id": f"UnVu{run.id}",
            "name": run.id,
            "displayName": run.name,
            "config": json.dumps(run.config),
            "tags": run.tags,
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps(last),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(run.summary),
            "wandbConfig": json.dumps({"t": 1}),  # without "t" the client takes the run for one not begun
        }
        return {"model": {"id": "UHJvamVjdA", "name": run.project, "entity": ENTITY, "bucket": bucket}}

    def on_create_run_files(self, variables: dict) -> dict:
        base = f"{self.url}/upload/{variables['run']}"
        files = [{"name": name, "uploadUrl": f"{base}/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": f"UnVu{variables['run']}", "uploadHeaders": [], "files": files}}

    def on_artifact_type(self, _) -> dict:
        return {"project": None}

    def on_create_artifact(self, _) -> dict:
        artifact = {"id": f"QXJ0{next(self.number)}", "state": "COMMITTED",
                    "artifactSequence": {"id": "c2Vx", "latestArtifact": None}}  # fmt: skip
        return {"createArtifact": {"artifact": artifact}}

    def stream(self, id: str, body: dict) -> None:
        """One post of a run's file stream: lines with the offset they belong at, or the end of the run."""
        run = self.run(id)
        for name, chunk in (body.get("files") or {}).items():
            lines = [json.loads(line) for line in chunk["content"]]
            if name == "wandb-history.jsonl":
                run.received += lines
                run.history.update(enumerate(lines, start=chunk["offset"]))
            elif name == "wandb-summary.json" and lines:
                run.summary = lines[-1]
        if body.get("complete"):
            run.exit_code = body.get("exitcode")


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def read(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def reply(self, value, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_one(self, serve) -> None:
        body = self.read()
        if self.server.hang:
            self.server.released.wait()
            self.close_connection = True
        elif self.server.refuse:
            self.reply({"errors": [{"message": "user is not logged in", "code": 401}]}, 401)
        else:
            with self.server.lock:
                answer = serve(body)
            self.reply(answer, 404 if answer is None else 200)

    def do_GET(self) -> None:
        self.handle_one(lambda body: {})

    def do_PUT(self) -> None:
        self.handle_one(lambda body: self.server.files.update({unquote(self.path): body}) or {})

    def do_POST(self) -> None:
        self.handle_one(self.post)

    def post(self, body: bytes) -> dict | None:
        if "graphql" in self.path:
            value = json.loads(body)
            found = re.search(r"(?:query|mutation)\s+(\w+)", value["query"])
            operation = found.group(1) if found else "Viewer"
            self.server.operations.append(operation)
            return {"data": self.server.answer(operation, value.get("variables") or {})}
        if found := re.search(r"/([^/]+)/file_stream", self.path):
            self.server.stream(found.group(1), json.loads(body))
            return {"exitcode": None, "limits": {}}
        self.server.unknown.append(self.path)
        return None
