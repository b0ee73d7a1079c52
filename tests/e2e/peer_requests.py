"""Random request bodies of the three protocols, for the comparison of prompts with deepseek-recipe. Everything follows from the seed."""
import json
import random

WORDS = ("the quick brown fox", "Hello", "42", "json", "naïve café", "日本語テスト", "Привет", "def f(x):\n    return x", "a\n\nb", " leading", "trailing \n",
         "<think>", "</think>", "<｜User｜>", "｜DSML｜", "<tool_result>", "\"quoted\"", "back\\slash", "\t", "\u2028", "🦀", "%s %n", "{\"a\": 1}", "",
         "\x00", "</｜DSML｜ parameter>", "null")
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
NAMES = ("get_weather", "search", "run-code", "f", "A1_b", "write_file")
VALUES = (1, 0, -5, 2.5, 1.0, True, False, None, "x", "", "a \"b\" <c>\n", [], {}, [1, [2, {"k": None}]], {"n": {"m": [1, 2]}}, "ümlaut", 123456789012, 0.1)


class Maker:
    def __init__(self, seed, v4):
        self.r = random.Random(seed)
        self.v4 = v4
        self.model = "DeepSeek-V4-Pro" if v4 else "DeepSeek-V4.1-Flash"
        self.n = 0

    def maybe(self, p):
        return self.r.random() < p

    def text(self, most=4):
        if self.v4: # the peer drops the blank line beside an empty message there
            return self.r.choice((" ", "-", "\n")).join(["x"] + [self.r.choice(WORDS) for _ in range(self.r.randint(0, most - 1))])
        return self.r.choice((" ", "", "\n")).join(self.r.choice(WORDS) for _ in range(self.r.randint(1, most)))

    def schema(self):
        s = {"type": "object", "properties": {}}
        for k in self.r.sample(("city", "n", "opts", "ünï", "list"), self.r.randint(0, 4)):
            s["properties"][k] = self.r.choice(({"type": "string", "description": self.text(2)}, {"type": "integer", "minimum": 0},
                                               {"type": "array", "items": {"type": "number"}}, {"enum": ["a", 1, None]},
                                               {"type": ["string", "null"], "default": None}))
        if self.maybe(.5):
            s["required"] = list(s["properties"])
        if self.maybe(.3):
            s["additionalProperties"] = False
        return s

    def arguments(self):
        return {k: self.r.choice(VALUES) for k in self.r.sample(("a", "b", "key with space", "ключ", "z", "input"), self.r.randint(0, 4))}

    def arguments_text(self):
        if self.maybe(.08):
            return self.r.choice(("not json", "[1, 2]", "\"s\"", "{\"a\":", "17"))
        return json.dumps(self.arguments(), ensure_ascii=self.maybe(.3), separators=self.r.choice(((",", ":"), (", ", ": "))))

    def call_id(self):
        self.n += 1
        return self.r.choice(("call_%d", "id%02d", "c-%d")) % self.n

    def image(self):
        return self.r.choice(("https://example.com/a.png", "data:image/png;base64," + PNG, "HTTP://example.com/b.jpg"))


class Chat(Maker):
    def content(self, images=True):
        if self.maybe(.7):
            return self.text()
        blocks = [{"type": "text", "text": self.text(2)} for _ in range(self.r.randint(int(self.v4), 3))]
        if images and not self.v4 and self.maybe(.3):
            blocks.insert(self.r.randint(0, len(blocks)), {"type": "image_url", "image_url": {"url": self.image(), "detail": self.r.choice(("low", "high"))}})
        return blocks

    def turn(self, out):
        out.append({"role": "user", "content": self.content()})
        if self.maybe(.1):
            out.append({"role": "user", "content": self.content()})
        for _ in range(self.r.choice((0, 0, 1, 2)) if self.tools else self.r.choice((0, 0, 0, 1))):
            ids = [self.call_id() for _ in range(self.r.randint(1, 3))]
            m = {"role": "assistant", "content": self.r.choice((None, "", self.text())), "tool_calls": [
                {"id": i, "type": "function", "function": {"name": self.r.choice(NAMES), "arguments": self.arguments_text()}} for i in ids]}
            if self.maybe(.6):
                m["reasoning_content"] = self.text()
            out.append(m)
            self.r.shuffle(ids)
            out.extend({"role": "tool", "tool_call_id": i, "content": self.content()} for i in ids)
        m = {"role": "assistant", "content": self.text() if self.maybe(.9) else [{"type": "text", "text": self.text()}]}
        if self.maybe(.5):
            m["reasoning_content"] = self.text()
        out.append(m)

    def body(self):
        self.tools = self.maybe(.5)
        b = {"model": self.model, "messages": []}
        m = b["messages"]
        for _ in range(self.r.choice((0, 1, 1, 2))):
            m.append({"role": "system", "content": self.content(False)})
        for _ in range(self.r.randint(0, 4)):
            self.turn(m)
            if self.maybe(.1):
                m.append({"role": "system", "content": self.text()})
        if self.maybe(.1):
            m.append({"role": "latest_reminder", "content": self.text()})
        m.append({"role": "user", "content": self.content()})
        if self.maybe(.06):
            m.append({"role": "assistant", "content": self.text(), "prefix": True})
            if self.maybe(.5):
                m[-1]["reasoning_content"] = self.text()
        if self.maybe(.4):
            b["thinking"] = {"type": self.r.choice(("enabled", "disabled"))}
        if self.maybe(.3):
            b["reasoning_effort"] = self.r.choice(("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"))
        if self.tools:
            b["tools"] = [{"type": "function", "function": {"name": n, **({"description": self.text()} if self.maybe(.8) else {}),
                                                            **({"parameters": self.schema()} if self.maybe(.9) else {})}}
                          for n in self.r.sample(NAMES, self.r.randint(1, 4))]
            if self.maybe(.3):
                b["tool_choice"] = self.r.choice(("auto", "none", "required", {"type": "function", "function": {"name": b["tools"][0]["function"]["name"]}}))
        if self.maybe(.15):
            b["response_format"] = self.r.choice(({"type": "text"}, {"type": "text" if self.v4 else "json_object"},
                                                  {"type": "json_schema", "json_schema": {"name": "s", "schema": self.schema()}}))
        return b


class Responses(Maker):
    def content(self, kind="input_text", images=True):
        if self.maybe(.6):
            return self.text()
        blocks = [{"type": kind, "text": self.text(2)} for _ in range(self.r.randint(1, 3))]
        if images and not self.v4 and self.maybe(.3):
            blocks.append({"type": "input_image", "image_url": self.image()})
        return blocks

    def turn(self, out):
        role = self.r.choice(("user", "user", "developer"))
        out.append({"type": "message", "role": role, "content": self.content(images=role == "user")})
        if self.maybe(.15):
            out.append({"role": "system", "content": self.text()})
        for _ in range(self.r.choice((0, 1, 2))):
            if self.maybe(.5):
                out.append({"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": self.text()}
                                                                                      for _ in range(self.r.randint(1, 2))]})
            if self.maybe(.3):
                out.append({"type": "message", "role": "assistant", "content": self.content("output_text", False)})
            ids = [self.call_id() for _ in range(self.r.randint(1, 3))]
            for i in ids:
                out.append({"type": "function_call", "call_id": i, "name": self.r.choice(NAMES), "arguments": self.arguments_text()} if self.maybe(.8) else
                           {"type": "custom_tool_call", "call_id": i, "name": "apply_patch", "input": self.text()})
            kinds = {o["call_id"]: o["type"] for o in out if "call_id" in o}
            self.r.shuffle(ids)
            out.extend({"type": kinds[i] + "_output", "call_id": i, "output": self.content()} for i in ids)
        if self.maybe(.8):
            out.append({"type": "message", "role": "assistant", "content": self.content("output_text", False)})

    def body(self):
        b = {"model": self.model}
        if self.maybe(.1):
            b["input"] = self.text()
        else:
            b["input"] = []
            for _ in range(self.r.randint(0, 3)):
                self.turn(b["input"])
            b["input"].append({"role": "user", "content": self.content()})
        if self.maybe(.6):
            b["instructions"] = self.text()
        if self.maybe(.4):
            b["reasoning"] = {"effort": self.r.choice(("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")), "summary": "auto"}
        if self.maybe(.5):
            b["tools"] = [{"type": "function", "name": n, "description": self.text(), "parameters": self.schema()}
                          for n in self.r.sample(NAMES, self.r.randint(1, 3))]
            if not self.v4 and self.maybe(.3):
                b["tools"].append({"type": "namespace", "name": "ns", "description": self.text(), "tools": [
                    {"type": "function", "name": n, "description": self.text(), "parameters": self.schema()} for n in self.r.sample(NAMES, 2)]})
            if self.maybe(.2):
                b["tools"].append({"type": "web_search"})
            if self.maybe(.3):
                b["tool_choice"] = self.r.choice(("auto", "none", "required", {"type": "function", "name": b["tools"][0]["name"]}))
        if self.maybe(.1):
            b["text"] = {"format": self.r.choice(({"type": "text"}, {"type": "text" if self.v4 else "json_object"}, {"type": "json_schema", "name": "s", "schema": self.schema()}))}
        return b


class Messages(Maker):
    def blocks(self):
        out = []
        for _ in range(self.r.randint(1, 3)):
            if not self.v4 and self.maybe(.1):
                out.append({"type": "image", "source": self.r.choice(({"type": "url", "url": "https://example.com/a.png"},
                                                                      {"type": "base64", "media_type": "image/png", "data": PNG}))})
            else:
                out.append({"type": "text", "text": self.text(2)})
        return out

    def content(self):
        return self.text() if self.maybe(.5) else self.blocks()

    def turn(self, out):
        ids = []
        out.append({"role": "user", "content": self.content()})
        for _ in range(self.r.choice((0, 0, 1, 2))):
            a = []
            if self.maybe(.5):
                a.append({"type": "thinking", "thinking": self.text(), "signature": "sig"})
            if self.maybe(.4):
                a.append({"type": "text", "text": self.text()})
            ids = [self.call_id() for _ in range(self.r.randint(1, 3))]
            a.extend({"type": "tool_use", "id": i, "name": self.r.choice(NAMES), "input": self.arguments()} for i in ids)
            out.append({"role": "assistant", "content": a})
            self.r.shuffle(ids)
            u = [{"type": "tool_result", "tool_use_id": i, **({"content": self.content()} if self.maybe(.9) else {})} for i in ids]
            if self.maybe(.3):
                u += self.blocks()
            out.append({"role": "user", "content": u})
        a = [{"type": "thinking", "thinking": self.text(), "signature": "sig"}] if self.maybe(.4) else []
        out.append({"role": "assistant", "content": a + [{"type": "text", "text": self.text()}] if a or self.maybe(.5) else self.text()})

    def body(self):
        b = {"model": self.model, "max_tokens": 100, "messages": []}
        for _ in range(self.r.randint(0, 3)):
            self.turn(b["messages"])
            if self.maybe(.05):
                b["messages"].append({"role": "system", "content": self.text()})
        b["messages"].append({"role": "user", "content": self.content()})
        if self.maybe(.6):
            b["system"] = self.text() if self.maybe(.5) else [{"type": "text", "text": self.text()} for _ in range(self.r.randint(1, 2))]
        if self.maybe(.4):
            b["thinking"] = {"type": self.r.choice(("enabled", "disabled", "adaptive"))}
            if b["thinking"]["type"] == "enabled":
                b["thinking"]["budget_tokens"] = 1024
        if self.maybe(.3):
            b["output_config"] = {"effort": self.r.choice(("low", "medium", "high", "xhigh", "ultra", "max"))}
        if self.maybe(.5):
            b["tools"] = [{"name": n, **({"description": self.text()} if self.maybe(.8) else {}), "input_schema": self.schema()}
                          for n in self.r.sample(NAMES, self.r.randint(1, 4))]
            if self.maybe(.3):
                b["tool_choice"] = self.r.choice(({"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": b["tools"][0]["name"]}))
        return b


PROTOCOLS = {"chat": Chat, "responses": Responses, "messages": Messages}


def bodies(protocol, v4, n, seed=0):
    for i in range(n):
        yield PROTOCOLS[protocol](f"{protocol}/{v4}/{seed}/{i}", v4).body()
