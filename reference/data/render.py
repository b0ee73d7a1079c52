"""The V4.1 prompt layout for training: a conversation becomes runs of text and control tokens, each with a loss flag.

A conversation is a dictionary: `messages` (role system, user, assistant, tool, latest_reminder; content; assistant messages may
have `reasoning` and `calls` = [{name, arguments}]), optional `tools` ([{name, description, parameters}]), `thinking` (bool) and
`effort` (number). Loss falls on what the model has to write itself: everything of an assistant turn after its header."""

import json
import re

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT, REMINDER = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<｜latest_reminder｜>"
THINK, UNTHINK, DSML = "<think>", "</think>", "｜DSML｜"
EFFORT = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{SCHEMAS}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""

_fixed = re.compile("(<think>|</think>|｜DSML｜)")


def dumps(x):
    return json.dumps(x, ensure_ascii=False)


class Runs(list):
    """[(is_control, text, loss)]; neighbouring text runs with the same flag are joined."""

    def control(self, name, loss=False):
        self.append((True, name, loss))

    def text(self, s, loss=False):
        if not s:
            return
        if self and not self[-1][0] and self[-1][2] == loss:
            self[-1] = (False, self[-1][1] + s, loss)
        else:
            self.append((False, s, loss))

    def markup(self, s, loss=False):
        """Text written by the template: the control spellings in it are control tokens."""
        for part in _fixed.split(s):
            if _fixed.fullmatch(part):
                self.control(part, loss)
            else:
                self.text(part, loss)


def calls_markup(out, calls, loss):
    out.markup("\n\n<｜DSML｜ calls>\n", loss)
    for i, call in enumerate(calls):
        out.markup(("\n" if i else "") + "<｜DSML｜ invoke name=\"", loss)
        out.text(call["name"] + "\">\n", loss)
        for k, (key, value) in enumerate(call["arguments"].items()):
            is_text = isinstance(value, str)
            out.markup(("\n" if k else "") + "<｜DSML｜ parameter name=\"", loss)
            out.text(f'{key}" string="{"true" if is_text else "false"}">' + (value if is_text else dumps(value)), loss)
            out.markup("</｜DSML｜ parameter>", loss)
        out.markup("\n</｜DSML｜ invoke>", loss)
    out.markup("\n</｜DSML｜ calls>", loss)


def render(conv, generation_header=False):
    """Runs of a whole conversation; with generation_header, of the prompt that asks for the next assistant turn."""
    messages = list(conv["messages"])
    tools, thinking = conv.get("tools") or [], conv.get("thinking", False)
    if tools:
        if not messages or messages[0]["role"] != "system":
            messages.insert(0, dict(role="system", content=""))
    out = Runs()
    out.control(BOS)
    first_system = bool(messages) and messages[0]["role"] == "system"
    if first_system or thinking:
        out.control(SYSTEM)
    if thinking:
        out.text(EFFORT.format(conv.get("effort", 75)))
    last_user = max([i for i, m in enumerate(messages) if m["role"] == "user" or (m["role"] == "system" and i)], default=-1)
    previous = None
    for i, m in enumerate(messages):
        role = m["role"]
        if role == "system":
            if i:
                out.control(SYSTEM)
            out.text(m["content"])
            if tools and i == 0:
                head, tail = TOOLS.split("{SCHEMAS}")
                out.markup("\n\n" + head)
                out.text("\n".join(dumps(dict(name=t["name"], description=t.get("description", ""), parameters=t.get("parameters", {})))
                                   for t in tools))
                out.markup(tail)
        elif role in ("user", "tool"):
            if previous in ("user", "tool"):
                out.text("\n\n")
            else:
                out.control(USER)
            out.text(m["content"] if role == "user" else "<tool_result>" + m["content"] + "</tool_result>")
        elif role == "latest_reminder":
            out.control(REMINDER)
            out.text(m["content"])
        elif role == "assistant":
            out.control(ASSISTANT)
            keep = thinking and (tools or i > last_user)
            if keep:
                out.control(THINK)
                out.text(m.get("reasoning", ""), True)
                out.control(UNTHINK, True)
            else:
                out.control(UNTHINK)
            out.text(m.get("content") or "", True)
            if m.get("calls"):
                calls_markup(out, m["calls"], True)
            out.control(EOS, True)
        else:
            raise ValueError(role)
        previous = role
    if generation_header:
        out.control(ASSISTANT)
        out.control(THINK if thinking else UNTHINK)
    return out
