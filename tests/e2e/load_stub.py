"""A server for tests of the load generator: asyncio, raw HTTP/1.1, answers that the model name or max_tokens ask for. Prints its port.

As a program: load_stub.py [SECONDS BETWEEN TOKENS]; it ends with its standard input.
"""
import asyncio
import json
import sys


class LoadStub:
    def __init__(self, gap=0.0):
        self.gap, self.requests, self.connections, self.answered = gap, [], 0, 0
        self.hold, self.first = 0.0, None  # from the first request on nothing is answered for so many seconds

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=4096)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while await self.one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        writer.close()

    async def one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        self.requests.append((head, body))
        close = fields.get("connection") == "close"
        model, tokens = body["model"], body["max_tokens"]
        usage = {"prompt_tokens": 100, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 40}}
        self.first = self.first or asyncio.get_running_loop().time()
        if self.hold:
            await asyncio.sleep(max(0, self.first + self.hold - asyncio.get_running_loop().time()))
        if model.isdigit():
            text = b'{"error":{"message":"no"}}'
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (int(model), len(text), text))
        elif model == "close":
            return False
        elif model == "garbage":
            writer.write(b"SSH-2.0-x\r\n")
            return False
        elif model == "silent":
            await asyncio.sleep(60)
        elif not body.get("stream"):
            text = json.dumps({"choices": [{"message": {"role": "assistant", "content": "word " * tokens}, "finish_reason": "stop"}], "usage": usage}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            await self.stream(writer, body, tokens, usage)
        await writer.drain()
        self.answered += 1
        if model == "onceonly":  # says nothing and hangs up: a client that reuses the connection has to notice
            return False
        return not close

    async def stream(self, writer, body, tokens, usage):
        def event(data):
            text = b"data: " + data + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))

        chat = "messages" in body
        if chat:
            event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}')
        for i in range(tokens):
            if self.gap:
                await asyncio.sleep(self.gap)
            piece = json.dumps(f'w"{i} ')
            event((f'{{"choices":[{{"index":0,"delta":{{"content":{piece}}},"finish_reason":null}}]}}' if chat else f'{{"choices":[{{"text":{piece},"finish_reason":null}}]}}').encode())
            if body["model"] == "break" and i == 1:
                event(b'{"error":{"message":"failed"}}')
                break
            if body["model"] == "cut" and i == 1:
                break
        else:
            event(json.dumps({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}], "usage": usage}).encode())
            event(b"[DONE]")
        writer.write(b"0\r\n\r\n")


async def main():
    print(await LoadStub(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0).start(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
