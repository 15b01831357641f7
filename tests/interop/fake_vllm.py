"""A stand-in for vLLM's OpenAI-compatible server, as far as `check --serve-gap` needs it: it answers
with the log-probabilities that it is given, in vLLM's form, or misbehaves as it is told."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeVllm:
    """log_probs(ids) → [log p of ids[1:]]; `fault` changes the answer. Requests are kept."""

    def __init__(self, log_probs, models=("tiny",), fault=None, api_key=None):
        self.log_probs, self.models, self.fault, self.api_key = log_probs, models, fault, api_key
        self.requests = []
        self.stop = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status, body):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has had enough

            def do_GET(self):
                if self.path == "/v1/models":
                    return self.answer(200, {"data": [{"id": m} for m in fake.models]})
                self.answer(404, {"detail": "Not Found"})

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append(request)
                key = self.headers.get("Authorization")
                if fake.api_key and key != f"Bearer {fake.api_key}":
                    return self.answer(401, {"error": "Unauthorized"})
                if request["model"] not in fake.models:
                    return self.answer(404, {"error": {
                        "message": f"The model `{request['model']}` does not exist.",
                        "type": "NotFoundError", "code": 404}})
                fake.respond(self, request)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def respond(self, handler, request):
        ids = request["prompt"]
        entries = [None] + [
            {"0" if i else "1": {"logprob": -0.01, "rank": 1, "decoded_token": "a"},
             str(i): {"logprob": lp, "rank": 5, "decoded_token": "b"}}
            for i, lp in zip(ids[1:], self.log_probs(ids))]
        if self.fault == "500":
            return handler.answer(500, {"error": {"message": "CUDA out of memory"}})
        if self.fault == "plain-503":
            return handler.answer(503, b"upstream is away")
        if self.fault == "hang":
            self.stop.wait(60)
            return None
        if self.fault == "short":
            entries = entries[:-1]
        if self.fault == "nulls":
            entries[len(entries) // 2] = None
        if self.fault == "other-token":
            entries[1] = {str(ids[1] + 1): {"logprob": -1.0}}
        if self.fault == "text":
            entries[1][str(ids[1])] = {"logprob": "-1"}
        if self.fault == "positive":
            entries[1][str(ids[1])] = {"logprob": 3.0}
        if self.fault == "none":
            entries = None
        if self.fault == "not-json":
            return handler.answer(200, b"<html>proxy</html>")
        if self.fault == "nan":
            return handler.answer(200, b'{"choices":[{"prompt_logprobs":[null,NaN]}]}')
        if self.fault == "no-choices":
            return handler.answer(200, {"choices": []})
        if self.fault == "huge":
            handler.send_response(200)
            handler.end_headers()
            try:
                for _ in range(400):
                    handler.wfile.write(b" " * (1 << 20))
            except (BrokenPipeError, ConnectionResetError):
                pass
            return None
        return handler.answer(200, {"id": "cmpl-1", "object": "text_completion", "choices": [
            {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": entries}]})

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()
