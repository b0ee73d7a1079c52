"""Claude Code and Codex complete a session with a tool call against the server. The model's outputs are recorded, so that what is tested is the protocol."""
import json
import os
import pathlib
import subprocess
import sysconfig

import pytest

from client_lib import client
from server_lib import Server, call_block, calls, make_model

PACKAGES = pathlib.Path(sysconfig.get_paths()["purelib"])


def find(*parts):
    path = PACKAGES.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{parts[0]} isn't installed (tests/requirements.txt)")
    return str(path)


@pytest.fixture
def model(program, root, tmp_path):
    return make_model(program, root, tmp_path / "model")


def run(command, env, cwd, timeout=240):
    keep = {k: os.environ[k] for k in ("PATH", "LANG", "TMPDIR") if k in os.environ}
    return subprocess.run(command, env={**keep, **env}, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)


@client("Claude Code, claude-agent-sdk", "claude-agent-sdk", "`ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_API_KEY=none`")
def test_claude_code(program, model, tmp_path):
    claude = find("claude_agent_sdk", "_bundled", "claude")
    work = tmp_path / "work"
    work.mkdir()
    (work / "answer.txt").write_text("forty-two\n")
    replay = [
        {"when": '"tool_result"', "text": "It is there.</think>\n\nThe file says forty-two."},
        {"when": '"name":"Bash"', "text": "I look.</think>\n\nLet me read it." + calls(call_block("Bash", command="cat answer.txt", description="Read the file"))},
        {"text": 'x</think>\n\n{"title": "Reading"}', "repeat": True},
    ]
    with Server(program, model, "--context", 1 << 20, replay=replay, folder=tmp_path) as s:
        done = run([claude, "-p", "What does answer.txt say?", "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash(cat:*)", "--max-turns", "4"],
                   {"ANTHROPIC_BASE_URL": s.url, "ANTHROPIC_API_KEY": "k", "HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "DISABLE_TELEMETRY": "1",
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1", "no_proxy": "*"}, work)
        log = "".join(s.log)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-2000:], log[-3000:])
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert events[-1]["type"] == "result" and events[-1]["result"] == "The file says forty-two." and not events[-1]["is_error"], events[-1]
    results = [b for e in events if e["type"] == "user" for b in e["message"]["content"] if isinstance(b, dict) and b.get("type") == "tool_result"]
    assert len(results) == 1 and "forty-two" in json.dumps(results[0]["content"])


@client("Codex CLI", "openai-codex-cli-bin", '`~/.codex/config.toml` as above; `env_key` may name a variable with the key')
def test_codex(program, model, tmp_path):
    codex = find("codex_cli_bin", "bin", "codex")
    work, home = tmp_path / "work", tmp_path / "codex"
    work.mkdir()
    home.mkdir()
    (work / "answer.txt").write_text("forty-two\n")
    replay = [
        {"when": '"function_call_output"', "text": "It is there.</think>\n\nThe file says forty-two."},
        {"when": '"name":"shell_command"', "text": "I look.</think>\n\nLet me read it." + calls(call_block("shell_command", command="cat answer.txt"))},
        {"when": '"name":"exec_command"', "text": "I look.</think>\n\nLet me read it." + calls(call_block("exec_command", cmd="cat answer.txt"))},
        {"text": "I look.</think>\n\nLet me read it." + calls(call_block("shell", command=["cat", "answer.txt"]))},
    ]
    with Server(program, model, "--context", 1 << 20, replay=replay, folder=tmp_path) as s:
        (home / "config.toml").write_text(f'''
model = "deepseek"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{s.url}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
''')
        done = run([codex, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "What does answer.txt say?"],
                   {"CODEX_HOME": str(home), "HOME": str(tmp_path), "LOCAL_KEY": "k", "no_proxy": "*"}, work)
        log = "".join(s.log)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-2000:], log[-3000:])
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    items = [e["item"] for e in events if e["type"] == "item.completed"]
    assert [i["text"] for i in items if i["type"] == "agent_message"][-1] == "The file says forty-two.", done.stdout
    ran = [i for i in items if i["type"] == "command_execution"]
    assert len(ran) == 1 and "forty-two" in ran[0]["aggregated_output"] and ran[0]["exit_code"] == 0


@pytest.mark.parametrize("cli", ["claude", "codex"])
def test_on_the_demonstration_model(program, root, tmp_path, cli):
    """Both come to the end of a turn on a real model, in its context of 16,384 tokens."""
    path = find("claude_agent_sdk", "_bundled", "claude") if cli == "claude" else find("codex_cli_bin", "bin", "codex")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    with Server(program, root / "models/demo") as s:
        if cli == "claude":
            done = run([path, "-p", "Say hello.", "--output-format", "stream-json", "--verbose", "--max-turns", "1"],
                       {"ANTHROPIC_BASE_URL": s.url, "ANTHROPIC_API_KEY": "k", "HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / "claude"), "DISABLE_TELEMETRY": "1",
                        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "no_proxy": "*"}, work)
        else:
            (home / "config.toml").write_text(f'model = "deepseek"\nmodel_provider = "local"\n[model_providers.local]\nname = "local"\nbase_url = "{s.url}/v1"\n'
                                              'wire_api = "responses"\nenv_key = "LOCAL_KEY"\n[analytics]\nenabled = false\n')
            done = run([path, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "Say hello."],
                       {"CODEX_HOME": str(home), "HOME": str(home), "LOCAL_KEY": "k", "no_proxy": "*"}, work)
        prompts = [json.loads(line).get("prompt_tokens") or 0 for line in s.log if line.startswith("{")]
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert 5000 < max(prompts) < 16384, (prompts, done.stdout[-2000:], done.stderr[-2000:])
    assert events[-1]["type"] == ("result" if cli == "claude" else "turn.completed"), (done.stdout[-2000:], done.stderr[-2000:])
    if cli == "codex":
        assert done.returncode == 0
